"""The time of a real trainer's step while clients of the control socket stall, flood, drip and lie, and without them.

Quiet and attacked windows alternate in one run. The attackers' own processor time counts against the trainer, so in a
third row a process beside it only computes. The figures are printed. The test asserts that training went on and that
nothing else happened.
"""

from __future__ import annotations

import bisect
import contextlib
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from tests.bench.machine import burners, machine
from tests.daemon.harness import SETS, DaemonProcess, of_type
from tests.daemon.test_attacks import ask_and_read, attacked, drip, flood, long_names
from tolariad.core import messages as m

pytestmark = pytest.mark.bench
ROUNDS = 5
WINDOW_S = 4.0
# The times of events that one frame holds differ by less than a step: several steps are measured at once.
STEPS = 20


def steps_us(stamps: list[int], began: int, ended: int) -> list[float]:
    """Microseconds a step took, for each `STEPS` of them between two monotonic times in ns."""
    inside = stamps[bisect.bisect_left(stamps, began) : bisect.bisect_right(stamps, ended)]
    return [(last - first) / STEPS / 1e3 for first, last in zip(inside[::STEPS], inside[STEPS::STEPS], strict=False)]


def row(name: str, taken: list[float], alone: list[float]) -> str:
    """Median and p95 of the step, and the median against the one alone."""
    median = statistics.median(taken)
    p95 = sorted(taken)[len(taken) * 95 // 100]
    return f"{name:<44}{median:>9.0f}{p95:>9.0f}{median / statistics.median(alone):>9.2f}{len(taken) * STEPS:>9}"


def test_the_step_of_a_real_trainer_beside_its_attackers(tmp_path):
    """The digits, one torch thread, which leaves the daemon a core of two."""
    run = tmp_path / "run"
    run.mkdir()
    sets = [*SETS, "detect.act=false", "torch_threads=1"]
    daemon = DaemonProcess(run, task="digits", epochs=100_000, sets=sets, trainer_command=None)
    daemon.until(lambda status: (status.get("step") or 0) > 200, "two hundred steps")
    company: dict[str, Callable[[], AbstractContextManager[object]]] = {
        "alone": contextlib.nullcontext,
        "beside attackers": lambda: attacked(daemon, flood, flood, drip, ask_and_read, long_names),
        "beside a process that computes": lambda: burners(1),
    }
    windows: dict[str, list[tuple[int, int]]] = {name: [] for name in company}
    for _ in range(ROUNDS):
        for name, beside in company.items():
            with beside():
                began = time.monotonic_ns()
                time.sleep(WINDOW_S)
                windows[name].append((began, time.monotonic_ns()))
    daemon.call("Stop", mode="now")
    assert daemon.wait() == 0, daemon.stderr

    stamps = [event.mono for event in of_type(run, m.StepCompleted)]
    taken = {name: [one for window in of for one in steps_us(stamps, *window)] for name, of in windows.items()}
    head = f"{'microseconds a step, digits, 1 torch thread':<44}{'p50':>9}{'p95':>9}{'ratio':>9}{'steps':>9}"
    print("\n" + "\n".join([machine(), head, *(row(name, taken[name], taken["alone"]) for name in company)]))
    assert all(len(one) > ROUNDS for one in taken.values())
    assert [of_type(run, kind) for kind in (m.TrainerDied, m.EmergencyRaised, m.RolledBack)] == [[], [], []]
