"""The price of a recorded step: each loop in processes of its own, one after the other.

On a busy machine these differ by more than the price. There the rows "step by step" tell more: a bare step of the same
size follows each recorded one, in the same thread.

APART_PROCESSES (6) is the number of processes of each kind, APART_STEPS (2800) that of the steps in each. With 2 and
1400 it takes less than a minute on an idle machine. Nothing is judged here.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.machine import burners, machine
from tests.daemon.harness import of_type
from tolariad.core import messages as m

PROCESSES = int(os.environ.get("APART_PROCESSES", "6"))
STEPS = int(os.environ.get("APART_STEPS", "2800"))
# The loops of a process, and when its steps are durable.
KINDS = (
    ("bare", ""),
    ("recorded", "step"),
    ("recorded", "batch"),
    ("daemon", "step"),
    ("daemon", "batch"),
    ("recorded+", "step"),
    ("daemon+", "step"),
)
PERCENTS = (5, 25, 50)
WORDS = {
    "recorded": "a program",
    "daemon": "tolariad run",
    "recorded+": "a program, step by step",
    "daemon+": "tolariad run, step by step",
}


def measured(loops: str, sync: str, folder: Path, seed: int) -> dict[str, dict[str, list[float]]]:
    """Microseconds of each step by loop and clock, in a new process."""
    command = [sys.executable, "-m", "tests.bench.price_apart", loops, sync, str(folder), str(STEPS), str(seed)]
    ended = subprocess.run(command, check=True, capture_output=True, timeout=300)
    found: dict[str, dict[str, list[float]]] = json.loads(ended.stdout)
    return found


@pytest.mark.bench
@pytest.mark.parametrize("load", [0, os.cpu_count() or 1], ids=["a core is free", "no core is free"])
def test_the_price_of_a_recorded_step_is_printed(load, tmp_path, seed):
    """Over the bare loop in a process of its own, for a program and for the daemon's trainer."""
    found = {kind: [] for kind in KINDS}
    with burners(load):
        for number in range(PROCESSES):
            for loops, sync in KINDS:
                folder = tmp_path / f"{loops}-{sync}{number}"
                found[loops, sync].append(measured(loops, sync, folder, seed + number))

    print(f"\n{machine()}; {load} processes that only compute; {PROCESSES} processes of {STEPS} steps each")
    (given,) = of_type(tmp_path / "recorded-step0", m.SchedulingRecorded)
    print(f"recorder on {given.daemon_cores}, program on {given.trainer_cores}: {given.why}; polls: {given.polls}")
    for clock in ("wall", "cpu"):
        heads = "".join(f"{f'{percent} %':>24s}" for percent in PERCENTS)
        print(f"{f'{clock} time, us a step':>48s}{heads}")
        bare = [one["bare"][clock] for one in found["bare", ""]]
        show("the bare loop alone", [[at(steps, percent) for steps in bare] for percent in PERCENTS], "8.0f")
        for (loops, sync), processes in found.items():
            if loops == "bare":
                continue
            over, pairs = [], []
            for percent in PERCENTS:
                alone = statistics.median(at(steps, percent) for steps in bare)
                below = [at(one["bare"][clock], percent) if "bare" in one else alone for one in processes]
                steps = [at(one["recorded"][clock], percent) for one in processes]
                over.append([mine - other for mine, other in zip(steps, below, strict=True)])
            show(f"sync: {sync}, {WORDS[loops]}", over, "+8.0f")
            for one in (one for one in processes if "bare" in one):
                both = zip(one["recorded"][clock], one["bare"][clock], strict=True)
                pairs.append(statistics.median(mine - other for mine, other in both))
            if pairs:
                show("the median of the pairs", [pairs], "+8.0f")
    assert len(found["bare", ""]) == PROCESSES


def show(what: str, by_percent: list[list[float]], form: str) -> None:
    """Print the median of the processes, and how far apart they are."""
    cells = [f"{statistics.median(some):{form}} ({min(some):.0f} to {max(some):.0f})" for some in by_percent]
    print(f"{what:>48s}" + "".join(f"{cell:>24s}" for cell in cells))


def at(steps: list[float], percent: int) -> float:
    """The step of which so many per cent are below."""
    return sorted(steps)[len(steps) * percent // 100]
