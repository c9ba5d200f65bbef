"""When a snapshot is due: by steps, by seconds, at epochs' ends, and within epochs that are long."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.core.rollback.test_rollback import TOTAL, living_steps
from tests.core.simulate import find, tick_until, until
from tests.core.simulated_trainer import STEPS_PER_EPOCH
from tests.core.snapped import SnappedTrainer, SnappedWorld
from tolariad.core import messages as m
from tolariad.core.rules.snapshots import LEAST_S
from tolariad.core.state.run_state import RunState, fold

SHARE = 0.005


class SlowWorld(SnappedWorld):
    """Each update of its trainers takes `step_s` seconds."""

    def __init__(self, step_s, **policy):
        self.step_s = step_s
        super().__init__(0, **{"snapshot_every": 0, "snapshot_share": SHARE, "epochs": 3, **policy})

    def tick(self):
        before = self.state.progress.step
        super().tick()
        if self.state.progress.step > before:
            self.mono += round(self.step_s * 1e9)


def within(world):
    """Return the steps of the snapshots that were taken within an epoch, without the first one."""
    return [e.step for e in find(world, m.SnapshotTaken)[1:] if e.batch]


def due(world):
    """Return the steps after which snapshots were ordered, without the first one."""
    return [e.step for e in find(world, m.SnapshotBegun)[1:]]


@pytest.mark.parametrize(
    ("policy", "steps"),
    [
        # The first one is taken as soon as there is memory, after step 2. A step takes ten seconds.
        ({"snapshot_every_s": 20.0}, [4, 6, 8, 10, 12]),
        ({"snapshot_every_s": 25.0}, [5, 8, 11]),
        ({"snapshot_every_s": 1.0}, [3, 4, 5, 6, 7, 8, 9, 10, 11, 12]),
        ({"snapshot_every_s": 1000.0}, []),
        ({"snapshot_every": 3}, [5, 8, 11]),
        ({"snapshot_every": 3, "snapshot_every_s": 20.0}, [4, 6, 8, 10, 12]),
        ({"snapshot_every": 2, "snapshot_every_s": 25.0}, [4, 6, 8, 10, 12]),
    ],
)
def test_a_configured_cadence_is_in_steps_in_seconds_or_whichever_comes_first(policy, steps):
    """And no epoch's end adds one: the configuration says when."""
    world = SlowWorld(10.0, **policy)
    world.run()

    assert due(world) == steps
    assert living_steps(world) == list(range(1, TOTAL + 1))


def test_a_long_epoch_has_snapshots_and_a_short_one_has_that_of_its_end():
    """By default. An epoch's end counts as the last snapshot."""
    long, short = SlowWorld(LEAST_S / 2), SlowWorld(1.0)
    long.run()
    short.run()

    ends = [STEPS_PER_EPOCH, 2 * STEPS_PER_EPOCH]
    assert due(short) == ends
    assert within(long) == [4, 7, 11]
    assert [e.step for e in find(long, m.SnapshotTaken) if e.batch == 0] == ends


def test_an_older_journal_has_one_at_each_epochs_end_only():
    """Its policy has no share for snapshots within epochs."""
    world = SlowWorld(1000.0, snapshot_share=0.0)
    world.run()

    assert due(world) == [STEPS_PER_EPOCH, 2 * STEPS_PER_EPOCH]


class Costly(SnappedTrainer):
    """A snapshot takes a second, of which training waits for a tenth."""

    def _snapshot(self, order):
        return replace(super()._snapshot(order), held_s=0.1, seconds=1.0)


def test_snapshots_within_an_epoch_cost_their_share_of_the_time_at_most():
    """One that takes a second is worth 200 s of training."""
    world = SlowWorld(70.0)
    world.new_trainer = lambda incarnation: _made(world, Costly, incarnation)
    world.run()

    # 210 s lie between an epoch's end and the end of the fourth step after it.
    assert within(world) == [8, 12]
    assert 1.0 / SHARE == 200.0


class Unstoppable(SnappedTrainer):
    """Its data can stop at the ends of epochs only."""

    def _snapshot(self, order):
        taken = super()._snapshot(order)
        return m.SnapshotFailedReport(id=order.id, why="the data cannot stop here") if self.batch else taken


def _made(world, kind, incarnation):
    made = kind(incarnation, world.environment, world.accuracy, world.broken)
    made.memory, made.garbled = world.memory, world.garbled
    return made


def test_snapshots_that_fail_within_epochs_are_tried_less_and_less_often():
    """Each failure doubles the time to the next try. The one at an epoch's end is taken, and ends that."""
    world = SlowWorld(LEAST_S)
    world.new_trainer = lambda incarnation: _made(world, Unstoppable, incarnation)
    world.run()

    assert [e.step for e in find(world, m.SnapshotTaken)] == [STEPS_PER_EPOCH, 2 * STEPS_PER_EPOCH]
    # After the end of the second epoch, one step and then two more.
    assert [step for step in due(world) if step > 2 * STEPS_PER_EPOCH] == [10, 12]
    assert world.state.snapshots.in_vain == 2


def test_a_snapshot_by_seconds_is_a_place_to_start_from_and_to_go_back_to():
    """The time is that of recorded steps: a replay folds to the same, and a re-run takes none."""
    world = until(SlowWorld(10.0, snapshot_every_s=20.0), 6)
    tick_until(world, lambda: world.state.snapshots.kept[-1].step == 6, "a snapshot of step 6")
    newest = world.state.snapshots.kept[-1]
    world.crash_trainer()
    begun = len(find(world, m.SnapshotBegun))
    tick_until(world, lambda: find(world, m.TrainingStarted)[-1].checkpoint == newest.id, "a start from memory")
    tick_until(world, lambda: world.state.progress.rerun is None, "the end of the re-run")
    assert len(find(world, m.SnapshotBegun)) == begun
    world.run()

    assert newest.batch
    assert fold(RunState(), world.events) == world.state
    assert living_steps(world) == list(range(1, TOTAL + 1))
    assert [e.first_difference for e in find(world, m.RerunFinished)] == [None] * len(find(world, m.RerunFinished))


def test_after_a_pause_one_is_due_and_not_one_for_each_missed():
    """An hour without steps is over: the first step makes one due, and the clock begins anew with it."""
    world = until(SlowWorld(1.0, snapshot_every_s=600.0), 5)
    world.mono += 3600 * 10**9
    until(world, 9)

    assert due(world) in ([6], [7])
