"""Make runs with incidents, to try the commands of docs/forensics.md on: `python -m examples.incidents FOLDER`.

All of them, or those that are named after the folder. Each run is one function here, with what happens in it.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from examples.incidents.library import installed
from examples.incidents.making import Making, environment

# Long enough for the orders to come in time on any machine; an order ends the run.
_LONG = "epochs=500"


def calm(folder: Path) -> str:
    """A run without incidents, and its twin with another rate."""
    runs = [Making(folder, "calm"), Making(folder, "twin", "learning_rate.base_lr=0.002")]
    for run in runs:
        run.ended()
    return "calm: nothing; twin: another rate"


def night(folder: Path) -> str:
    """A wrong item in the data, a killed trainer, orders."""
    run = Making(folder, "night", "task_options.trouble=nan", _LONG)
    run.reached(40)
    trainer = run.status().get("trainer") or {}
    if pid := trainer.get("pid"):
        os.kill(pid, signal.SIGKILL)
    run.recorded("TrainerDied")
    run.reached(60)
    run.ordered("lr", "set", "default", "0.0005", "--reason", "the norm drifts")
    run.ordered("note", "lowered the rate")
    run.reached(90)
    run.ordered("rollback", "--step", "80", "--yes", "--reason", "try it again")
    run.reached(100)
    run.ordered("stop", "--reason", "seen enough")
    run.ended()
    return "night: a NaN, a killed trainer, a lowered rate, a note, a rollback, a stop"


def spike(folder: Path) -> str:
    """One item is minus a thousand times what it was. Its batch comes once: the run has one epoch."""
    Making(folder, "spike", "task_options.trouble=spike", "task_options.items=6400", "epochs=1").ended()
    return "spike: an item of minus a thousand times its value"


def slow(folder: Path) -> str:
    """From step 140 on a step takes twice as long."""
    Making(folder, "slow", "task_options.slower=140", "epochs=14").ended()
    return "slow: each step takes twice as long from step 140 on"


def flipped(folder: Path) -> str:
    """One bit of a weight flips in memory after step 50, once."""
    mark = folder / "flipped-once"
    Making(folder, "flipped", "task_options.flipped=50", f"task_options.mark={mark}", "digest.every_steps=1").ended()
    return "flipped: a bit of a weight flips after step 50"


def libraries(folder: Path) -> str:
    """A run on an old library, and a twin that gets the new one in the middle. Both were started again there."""
    old, new = installed(folder, "1.0"), installed(folder, "2.0")
    for steps, newer in ((60, old), (120, new)):
        common = ("task_options.library=true", f"stop.steps={steps}")
        runs = Making(folder, "older", *common, library=old), Making(folder, "upgraded", *common, library=newer)
        for run in runs:
            run.ended()
    return "older: a library of version 1.0; upgraded: the same, with version 2.0 from step 61 on"


def ranks(folder: Path) -> str:
    """Two processes, of which rank 1 is slow, and is killed."""
    run = Making(folder, "ranks", "parallel.ranks=2", "task_options.slow_rank=1", _LONG)
    run.recorded("BudgetsMeasured")
    told = (run.status().get("ranks") or {}).get("ranks") or ()
    if pid := next((one["pid"] for one in told if one["rank"] == 1), 0):
        os.kill(pid, signal.SIGKILL)
    run.recorded("TrainerDied")
    run.recorded("resume")
    run.ordered("stop", "--reason", "seen enough")
    run.ended()
    return "ranks: two processes; rank 1 is slow, and is killed"


def grown(folder: Path) -> str:
    """A seed germinates in a slot of the model, and is trained."""
    run = Making(folder, "grown", "task_options.slot=true", "strategy=none", _LONG)
    run.reached(20)
    run.ordered("seeds", "germinate", "middle", "--blueprint", "low_rank", "--reason", "the loss stands")
    run.reached(40)
    run.ordered("seeds", "advance", "middle", "--reason", "let it learn")
    run.reached(60)
    run.ordered("stop", "--reason", "seen enough")
    run.ended()
    return "grown: a seed germinates in the slot `middle`"


def pruned(folder: Path) -> str:
    """Units of the model are found to be dispensable, are masked, and are removed."""
    if importlib.util.find_spec("torch_pruning") is None:
        return "pruned: not made, because it needs `pip install 'tolariad[pruning]'`"
    due = ("pruning_phase_transition_epoch=0", "pruning_checkpoint_interval=2", "prune.last_epoch=100000")
    shares = ("prune.budgets=[{epoch: 0, share: 0.1}]", "prune.caps=[{epoch: 0, share: 0.3}]")
    # A busy machine is slower for other reasons, a hundred samples of validation judge little, and the norm of a model
    # that has learnt everything grows by any masks.
    lenient = (
        *("prune.safety.speed=0", "prune.safety.accuracy_drop=1", "prune.safety.gradient_norm=1000000"),
        *("prune.validation.accuracy_retention=0", "prune.validation.gradient_ratio=1000000"),
    )
    # A checkpoint within the first epoch would begin a cycle that masks nothing.
    slowly = ("checkpoint.interval_steps=1000000", "learning_rate.base_lr=0.0001")
    # An analysis gives way to the training: on a busy machine thousands of steps are made meanwhile.
    run = Making(
        folder,
        "pruned",
        "prune.enabled=true",
        "prune.compact_every=1",
        *due,
        *shares,
        *lenient,
        *slowly,
        "epochs=100000",
    )
    run.acted("compaction")
    run.ordered("stop", "--reason", "seen enough")
    run.ended()
    return "pruned: units of the model are masked, and removed"


def full(folder: Path) -> str:
    """The disk is full, the run waits, and goes on when there is space."""
    program = shutil.which("unshare")
    inside = [sys.executable, "-m", "examples.incidents.full_disk", str(folder)]
    command = [program or "", "--user", "--map-root-user", "--mount", *inside]
    if program is None or subprocess.run(command, check=False, cwd=folder, env=environment()).returncode:
        return "full: not made, because no small disk can be mounted in a user namespace here"
    return "still: waits on a full disk; full: the same run, which went on when there was space"


RUNS: dict[str, Callable[[Path], str]] = {
    one.__name__: one for one in (calm, night, spike, slow, flipped, libraries, ranks, grown, pruned, full)
}


def main(folder: Path, names: list[str]) -> None:
    """Make the named runs in `folder`, or all, and print what happened in them."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names or RUNS:
        print(RUNS[name](folder), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "incidents").absolute(), sys.argv[2:])
