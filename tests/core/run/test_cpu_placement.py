"""The assignment of cores, and when a polling recorder polls: a table of values in and values out."""

from __future__ import annotations

import pytest

from tolariad.core.calc.run.cpu_placement import PAUSE_S, Demand, Machine, Pace, plan

MS = 1_000_000


@pytest.mark.parametrize(
    ("cores", "disk_core", "demand", "daemon", "trainer"),
    [
        pytest.param((0, 1), 1, Demand(threads=1), (1,), (0,), id="the disk's core is the recorder's"),
        pytest.param((0, 1), 0, Demand(threads=1), (0,), (1,), id="also where it is the first"),
        pytest.param((0, 1), None, Demand(threads=1), (1,), (0,), id="the last one where nobody can tell"),
        pytest.param((4, 5, 6), 1, Demand(threads=2), (6,), (4, 5), id="a core we may not use is no choice"),
        pytest.param((0, 1), 1, Demand(threads=2), (), (), id="torch takes all"),
        pytest.param((0,), 0, Demand(threads=1), (), (), id="one core is the trainer's"),
        pytest.param((0, 1), 1, Demand(threads=1, workers=1), (), (), id="a worker computes too"),
        pytest.param((0, 1, 2, 3), 1, Demand(threads=2, workers=1), (1,), (0, 2, 3), id="with its worker"),
        pytest.param((0, 1, 2), 2, Demand(threads=2, workers=8, on_gpu=True), (2,), (0, 1), id="beside a GPU it waits"),
        pytest.param((0, 1, 2), 2, Demand(threads=3, on_gpu=True), (), (), id="unless every core was asked for"),
    ],
)
def test_the_recorder_takes_a_core_only_where_the_trainer_leaves_one(cores, disk_core, demand, daemon, trainer):
    """Then all three follow: pinned, polling, SCHED_FIFO. Otherwise none of them, and the plan says why."""
    found = plan(Machine(cores=cores, disk_core=disk_core), demand)

    assert (found.daemon_cores, found.trainer_cores) == (daemon, trainer)
    assert found.is_apart is bool(daemon)
    assert found.why


def test_cores_that_somebody_has_chosen_are_left_alone():
    """A program with an affinity of its own: nothing is pinned, and the plan says whose choice it is."""
    found = plan(Machine(cores=(0, 1, 2), chosen_by="the program"), Demand(threads=1))

    assert not found.is_apart
    assert found.why.startswith("the program has chosen")


def paced(*moments_ms):
    """The pace of steps that were taken one by one at these moments."""
    pace = Pace()
    for moment in moments_ms:
        pace.took(1, int(moment * MS))
    return pace


def test_a_quick_step_is_looked_for_from_shortly_before_it_can_come():
    """1 ms apart: nothing before three quarters of that, then eight times a step, and not for ever."""
    pace = paced(10, 11, 12, 13)

    assert pace.pauses_s(int(13.2 * MS)) == pytest.approx((0.55e-3, 0.125e-3))
    assert pace.pauses_s(int(13.8 * MS)) == pytest.approx((0.125e-3, 0.125e-3))
    assert pace.pauses_s(int(15.0 * MS)) == pytest.approx((0.125e-3, 0.125e-3))
    assert pace.pauses_s(40 * MS) is None
    assert paced(1, 1.1, 1.2).pauses_s(int(1.3 * MS)) == (PAUSE_S, PAUSE_S)


def test_one_slow_step_does_not_hide_that_steps_are_quick():
    """The quickest of late counts: a step is never looked for too late because of a validation before it."""
    assert paced(10, 11, 12, 900).pauses_s(900 * MS)[0] == pytest.approx(0.75e-3)
    pace = Pace()
    pace.took(1, 10 * MS)
    pace.took(4, 14 * MS)
    assert pace.pauses_s(14 * MS)[0] == pytest.approx(0.75e-3)


def test_slow_steps_and_unknown_ones_are_waited_for_asleep():
    """Being woken is a small part of a 20 ms step; before the second step, and after a restart, nothing is known."""
    assert paced(10, 30, 50).pauses_s(50 * MS) is None
    assert paced(10).pauses_s(10 * MS) is None
    pace = paced(10, 11, 12)
    pace.forget()
    assert pace.pauses_s(12 * MS) is None
