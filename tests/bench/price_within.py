"""The priced trainer inside the recorder's own process: `MODE FOLDER EPOCHS key=value ...`, MODE thread or library."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.bench.price_task import PriceTask
from tests.bench.price_trainer import Priced
from tolariad import Tolaria, config
from tolariad.daemon import RunRequest, run
from tolariad.library import live
from tolariad.trainer import loop

TASK = "tests.bench.price_task:PriceTask"


def main(mode: str, folder: Path, epochs: int, sets: tuple[str, ...]) -> int:
    """Train under the daemon's thread mode, or under the library; `price.json` has what was measured."""
    loop.Trainer = Priced  # type: ignore[misc]
    if mode == "thread":
        return run(RunRequest(run_dir=folder, task=TASK, epochs=epochs, sets=(*sets, "trainer=thread")))
    live.Trainer = Priced  # type: ignore[misc]
    settings = config.load({"tolaria": {"task": TASK}}, sets)
    task = PriceTask()
    Tolaria(settings, run_dir=folder).train(task.model(settings), task.train_data(settings), None, epochs, task=task)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), tuple(sys.argv[4:])))
