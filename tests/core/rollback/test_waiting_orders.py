"""A rollback that was ordered while steps were run again, and whose target has gone when it may begin."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.core.rollback.test_rollback import TOTAL, living_steps
from tests.core.simulate import find, kinds, tick_until, until
from tests.core.snapped import SnappedWorld
from tests.core.test_lifecycle import assert_every_begun_has_one_end
from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.core.decision import Accepted

PLACE = 6


def waiting_for_a_snapshot():
    """Step 11, a checkpoint after step 8, a re-run from it under way; then an order back to the snapshot of step 6."""
    world = until(SnappedWorld(0, slots=5, snapshot_slots=5, checkpoint_every_epochs=1, checkpoint_gap_s=0.0), 9)
    target = next(one for one in world.state.snapshots.promoted if one.step == PLACE)
    # Else the next trainer would begin from memory, with nothing to run again.
    for one in world.state.snapshots.kept[::-1]:
        if one.id != target.id:
            world.give(m.SnapshotDiffers(id=one.id, why="it is damaged"))
    world.crash_trainer()
    for one in world.state.snapshots.kept:
        if one.id != target.id:
            world.memory[one.slot] = "noise"
    tick_until(world, lambda: world.state.progress.rerun, "a re-run")
    assert isinstance(world.command(m.Rollback(to=target.id)), Accepted)
    assert world.state.rollbacks.asked is not None
    return world, target


def test_it_goes_to_the_snapshot_where_that_is_there_still():
    """The order waits, and is begun as it was given."""
    world, target = waiting_for_a_snapshot()
    tick_until(world, lambda: world.state.rollbacks.done, "a rollback")
    (begun,) = find(world, m.RollbackBegun)

    assert (begun.checkpoint, begun.tier, begun.to_step) == (target.id, m.Tier.FAST, PLACE)


@pytest.mark.parametrize("how", ["the daemon dies", "the trainer dies and it differs"])
def test_it_goes_to_disk_at_or_before_that_step_where_the_snapshot_has_gone(how):
    """The memory was lost or found damaged: the full tier takes the newest checkpoint at or before that step."""
    world, target = waiting_for_a_snapshot()
    if how == "the daemon dies":
        world.restart_daemon()
    else:
        world.crash_trainer()
        world.memory[target.slot] = "noise"
        while world.due or not world.trainer:
            world.tick()
        world.give(m.SnapshotDiffers(id=target.id, why="it is damaged"))
    tick_until(world, lambda: world.state.rollbacks.done, "a rollback")
    (begun,), (done,) = find(world, m.RollbackBegun), find(world, m.RolledBack)
    requested = find(world, m.RollbackRequested)[0]
    world.run()

    assert requested.checkpoint == target.id
    assert begun.root == requested.root
    assert (begun.tier, begun.to_step, done.step) == (m.Tier.FULL, 4, 4)
    assert begun.checkpoint == next(one.id for one in world.state.checkpoints.catalogue if one.step == 4)
    assert world.state.rollbacks.asked is None
    assert living_steps(world) == list(range(1, TOTAL + 1))
    assert world.state.run.phase is st.Phase.COMPLETED
    assert_every_begun_has_one_end(world)


@pytest.mark.parametrize("is_paused", [False, True])
def test_where_nothing_is_left_for_it_the_order_ends_and_the_next_one_is_heard(is_paused):
    """Every checkpoint at or before it is unusable: the run names them, trains on, and takes another order."""
    world, target = waiting_for_a_snapshot()
    held = world.state.checkpoints
    gone = tuple(replace(one, rejected=one.step <= PLACE) for one in held.catalogue)
    world.state = replace(
        world.state,
        checkpoints=replace(held, catalogue=gone),
        snapshots=replace(world.state.snapshots, kept=()),
    )
    if is_paused:
        world.command(m.Pause())
        tick_until(world, lambda: world.state.run.phase is st.Phase.PAUSED, "the pause")
        world.command(m.Resume())
    tick_until(world, lambda: find(world, m.RerunFinished), "the end of the re-run")
    (aborted,) = find(world, m.RollbackAborted)
    again = world.command(m.Rollback())
    world.run()

    assert target.id in aborted.why
    assert aborted.rollback == find(world, m.RollbackBegun)[0].rollback
    assert isinstance(again, Accepted)
    assert find(world, m.RolledBack)[-1].step == 8
    assert kinds(world).count("RunFrozen") == 0
    assert_every_begun_has_one_end(world)
