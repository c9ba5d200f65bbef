"""Make runs with incidents, to try the commands of docs/forensics.md on: `python -m examples.incidents FOLDER`.

* `night`: two wrong items in the data (a NaN, a spike), a killed trainer, a lowered rate, a note, a rollback, a stop.
* `calm`: the same data without the wrong items, and no incident.
* `twin`: `calm` with another learning rate.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

TASK = Path(__file__).with_name("task.py")
_RUN = [sys.executable, "-c", "from tolariad.cli.tolariad import main; main()"]
_ASK = [sys.executable, "-c", "from tolariad.cli.tolaria import main; main()"]
_STEPS = 120


def main(folder: Path) -> None:
    """Make all runs in `folder`, and print what was done."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, sets in (("calm", ()), ("twin", ("learning_rate.base_lr=0.002",))):
        started(folder, name, sets).wait()
        print(f"{name}: {_STEPS} steps")
    # Long enough for the orders to come in time on any machine; an order ends it.
    long = ("task_options.trouble=true", "task_options.killed=40", "epochs=200")
    process = started(folder, "night", long)
    reached(folder / "night", 60)
    ordered(folder / "night", "lr", "set", "default", "0.0005", "--reason", "the norm drifts")
    ordered(folder / "night", "note", "lowered the rate")
    reached(folder / "night", 90)
    ordered(folder / "night", "rollback", "--step", "80", "--yes", "--reason", "try it again")
    ordered(folder / "night", "stop", "--reason", "seen enough")
    process.wait()
    print("night: a NaN, a spike, a killed trainer, a lowered rate, a note, a rollback, a stop")


def started(folder: Path, name: str, sets: tuple[str, ...]) -> subprocess.Popen[bytes]:
    """Start a run of three epochs."""
    common = (
        *(f"task={TASK}:Troubled", "epochs=6", "batch_size=32", "rng_seed=7", "learning_rate.warmup_epochs=0"),
        *("checkpoint.interval_steps=20", "checkpoint.min_gap_s=0", "optimizer.name=adam"),
    )
    given = ("learning_rate.base_lr=0.003", *sets)
    words = [word for one in (*common, *given) for word in ("--set", one)]
    log = (folder / f"{name}.log").open("wb")
    command = [*_RUN, "run", "--dir", str(folder / name), *words]
    return subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=folder, env=_environment())


def reached(run: Path, step: int) -> None:
    """Wait until the run has made a step."""
    while True:
        said = subprocess.run(
            [*_ASK, "status", "--dir", str(run), "--json"], capture_output=True, check=False, env=_environment()
        )
        status = json.loads(said.stdout or b"{}")
        if status.get("step", 0) >= step or status.get("phase") in ("completed", "failed", "stopped"):
            return
        time.sleep(0.1)


def ordered(run: Path, *words: str) -> None:
    """Give an order, and print what came of it."""
    subprocess.run([*_ASK, *words, "--dir", str(run)], check=False, env=_environment())


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "incidents").absolute())
