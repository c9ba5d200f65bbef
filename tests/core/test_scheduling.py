"""Who gets which core, and how long a polling recorder sleeps: a table of values in and values out."""

from __future__ import annotations

import pytest

from tolariad.core.scheduling import Demand, Machine, plan, polling_pause_s

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


def test_polling_is_quick_beside_quick_steps_seldom_beside_slow_ones_and_ends():
    """A 1 ms step must not wait for the next look; a 20 ms step does not pay for two hundred of them."""
    assert polling_pause_s(0) == polling_pause_s(2 * MS) == pytest.approx(100e-6)
    assert polling_pause_s(20 * MS) == pytest.approx(1e-3)
    assert polling_pause_s(200 * MS) is None
