"""A checkpoint that is still being written when the run rolls back counts only if it lies on the current branch."""

from __future__ import annotations

import pytest

from tests import order_events
from tests.core.rated import RatedWorld
from tests.core.rollback.test_rollback import TOTAL, living_steps
from tests.core.simulate import find, tick_until, until
from tests.core.simulated_trainer import STEPS_PER_EPOCH
from tests.core.snapped import SnappedWorld
from tests.core.test_lifecycle import KEEP_BEST, assert_every_begun_has_one_end
from tolariad.core import messages as m
from tolariad.core import queries as q
from tolariad.core import state as st

BEST = {"checkpoint_every_epochs": 100, **KEEP_BEST}


def held_back(world):
    """Train until a checkpoint after the first is captured. Return its report, which is not delivered yet."""
    tick_until(
        world, lambda: world.state.progress.step and world.state.checkpoints.open, "a checkpoint that is ordered"
    )
    world.trainer._obey()
    report = next(one for one in world.trainer.todo if isinstance(one, m.CheckpointWrittenReport))
    world.trainer.todo.remove(report)
    return report


def done(world, report):
    world.give(m.ReportReceived(incarnation=world.state.trainer.incarnation, report=report))
    return next(one for one in world.state.checkpoints.catalogue if one.id == report.id)


def back(world, **how):
    before = world.state.rollbacks.done
    world.command(m.Rollback(**how))
    tick_until(world, lambda: world.state.rollbacks.done > before, "a rollback")
    return find(world, m.RolledBack)[-1]


def test_one_of_a_step_before_the_fork_is_a_target_and_stays_the_best():
    """Back to a snapshot that is newer: the best epoch's end is kept, pinned, and the run may start from it."""
    world = SnappedWorld(0, **BEST)
    report = held_back(world)
    until(world, report.step + 3)
    fork = back(world, tier=m.Tier.FAST)
    entry = done(world, report)
    pins = q.pinned_checkpoints(world.state.checkpoints, 1)
    world.restart_daemon()
    world.run()

    assert fork.step > report.step == STEPS_PER_EPOCH
    assert (entry.is_target, entry.id in pins, q.epoch_to_keep(world.state)) == (True, True, 0)
    assert find(world, m.CheckpointCommitted)[1].best
    assert find(world, m.TrainingStarted)[-1].checkpoint == entry.id
    assert living_steps(world) == list(range(1, TOTAL + 1))
    assert world.state.run.phase is st.Phase.COMPLETED
    assert_every_begun_has_one_end(world)


def test_one_after_the_fork_is_nobodys_and_never_the_best():
    """The run rolls back to before its best epoch. The checkpoint of that epoch is abandoned; the next one of it is
    kept.
    """
    world = SnappedWorld(0, **BEST)
    report = held_back(world)
    until(world, report.step + 2)
    back(world, epoch=0)
    entry = done(world, report)
    held = world.state.checkpoints
    world.run()

    assert (entry.abandoned, held.best, held.newest.step) == (True, "", 0)
    assert [e.best for e in find(world, m.CheckpointCommitted)][1] is False
    assert world.state.checkpoints.best not in ("", entry.id)
    assert living_steps(world) == list(range(1, TOTAL + 1))


def test_the_earliest_of_several_forks_decides():
    """The run rolls back to before the checkpoint, and on the new branch to a later place.

    The checkpoint lies on neither branch, and it is not the best of its epoch.
    """
    world = SnappedWorld(0, **BEST)
    world.accuracy[2] = 0.05
    report = held_back(world)
    until(world, report.step + 2)
    back(world, epoch=0)
    until(world, report.step + 5)
    fork = back(world, tier=m.Tier.FAST)

    kept = world.state.checkpoints.best
    assert fork.step > report.step
    assert done(world, report).abandoned
    assert kept not in ("", report.id)
    assert world.state.checkpoints.best == kept
    assert not find(world, m.CheckpointCommitted)[-1].best


@pytest.mark.parametrize("is_changed", [False, True])
def test_one_at_the_fork_itself_counts_where_it_holds_the_same_orders(is_changed):
    """Two of one step; between them a rate was ordered, or not; back to the first while the second is being written."""
    world = until(RatedWorld(0), 6)
    world.command(m.Pause())
    tick_until(world, lambda: find(world, m.RunPaused), "a pause")
    world.command(m.Checkpoint())
    tick_until(world, lambda: find(world, m.CheckpointCommitted)[-1].step == 6, "the first")
    first = world.state.checkpoints.newest
    if is_changed:
        world.lr_set("head", 0.01)
        tick_until(world, lambda: find(world, order_events.acted(m.SetRate)), "the rate")
    world.command(m.Checkpoint())
    world.trainer._obey()
    report = world.trainer.todo.pop()
    back(world, to=first.id)
    entry = done(world, report)
    world.restart_daemon()
    world.command(m.Resume())
    world.run()

    assert (report.step, entry.abandoned) == (6, is_changed)
    assert find(world, m.TrainingStarted)[-1].checkpoint == (first.id if is_changed else entry.id)
    assert find(world, m.LrViolationDetected) == []
    assert world.state.boundary.acted == 0
    assert living_steps(world) == list(range(1, TOTAL + 1))


def test_a_checkpoint_of_a_snapshots_step_with_a_later_order_is_left_when_the_run_goes_back_to_that():
    """As with a checkpoint of that step: a start from it would use rates that were taken back."""
    world = until(SnappedWorld(0), 6)
    target = next(one for one in world.state.snapshots.promoted[::-1])
    at = {"step": target.step, "epoch": target.epoch, "batch": target.batch, "manifest": "cd", "pieces": ()}
    ids = []
    for orders in (0, 1):
        world.command(m.Checkpoint())
        id_ = world.state.checkpoints.open[-1].id
        world.trainer.orders.pop()
        done(world, m.CheckpointWrittenReport(id=id_, seconds=0.1, orders=orders, **at))
        ids.append(id_)
    fork = back(world, tier=m.Tier.FAST)
    same, later = (next(one for one in world.state.checkpoints.catalogue if one.id == id_) for id_ in ids)

    assert (fork.checkpoint, fork.orders) == (target.id, 0)
    assert (same.is_target, later.abandoned) == (True, True)
