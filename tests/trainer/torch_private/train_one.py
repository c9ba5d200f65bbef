"""`python -m tests.trainer.torch_private.train_one FOLDER TASK...`: train tasks, interrupted, and print digests."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

from tests.trainer.conftest import FakeDaemon, config
from tolariad.trainer.torch_private import choice

TASKS = Path(__file__).parents[1] / "tasks"


def digests(folder: Path, tasks: list[str]) -> list[str]:
    """Return a line for each task: the files of its last checkpoint, and its losses."""
    lines = []
    for number, task in enumerate(tasks):
        options = {"epochs": 1, "batch_size": 8, "ema": {"decay": 0.9}}
        run = folder / str(number)
        run.mkdir(parents=True)
        daemon = FakeDaemon(run, 1)
        daemon.checkpoint_after_step, daemon.exit_after_step = 3, 4
        configuration = config(f"{TASKS}/{task}", **options)
        daemon.train_here(configuration)
        daemon.train_here(configuration)
        content = b"".join(name.encode() + data for name, data in daemon.files("end").items())
        losses = [step.loss.hex() for step in daemon.steps.values()]
        lines.append(f"{task} {hashlib.sha256(content).hexdigest()} {' '.join(losses)}")
    return lines


if __name__ == "__main__":
    print("\n".join(digests(Path(sys.argv[1]), sys.argv[2:])))
    print("public" if choice.ONLY_PUBLIC else "private")
