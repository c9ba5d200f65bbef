"""The consequences of the votes in a rollback: a refused target stays usable, and the rollback goes to an older one."""

from __future__ import annotations

import pytest

from tests.core.rollback.test_rollback import TOTAL, living_steps
from tests.core.simulate import World, find, tick_until, until
from tests.core.snapped import SnappedWorld
from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.core.messages.sentences.text import sentence


def refusing(world, may_take):
    """Give the trainer a participant that takes only some targets. Return the ids that it was asked for."""
    plain, asked = world.trainer._prepared, []

    def prepared(order):
        asked.append(order.checkpoint.id)
        if may_take(order.checkpoint):
            return plain(order)
        return m.RollbackRefusedReport(
            rollback=order.rollback, file="participant plan", why="not there", participant="plan"
        )

    world.trainer._prepared = prepared
    return asked


def ended(world):
    tick_until(world, lambda: world.state.rollbacks.open is None and world.state.rollbacks.begun, "its end")
    return world


def test_a_refused_snapshot_leads_to_the_next_tier_and_stays_usable():
    """The full tier goes on under the same id, to an older step, and nothing is rejected."""
    world = until(SnappedWorld(0), 7)
    refusing(world, lambda ref: ref.slot is None)
    snapshot = world.state.snapshots.promoted[-1]
    world.command(m.Rollback(tier=m.Tier.FAST))
    ended(world)
    (escalated,), (done,) = find(world, m.RollbackEscalated), find(world, m.RolledBack)

    assert "participant plan: not there" in escalated.why
    assert done.step < snapshot.step
    assert find(world, m.SnapshotRejected) == []
    world.run()
    assert living_steps(world) == list(range(1, TOTAL + 1))


def test_a_target_that_the_order_named_is_refused_and_training_goes_on():
    """No other target takes its place, the checkpoint is not rejected, and the same order may succeed later."""
    world = until(World(0), 7)
    asked = refusing(world, lambda ref: len(asked) > 1)
    world.command(m.Rollback(epoch=1))
    ended(world)
    (aborted,) = find(world, m.RollbackAborted)
    assert aborted.why.endswith("participant plan: not there")
    world.command(m.Rollback(epoch=1))
    ended(world)

    assert asked[0] == asked[1] == find(world, m.RolledBack)[0].checkpoint
    assert find(world, m.CheckpointRejected) == find(world, m.CheckpointUnfit) == []
    world.run()
    assert living_steps(world) == list(range(1, TOTAL + 1))


@pytest.mark.parametrize("level", [m.Level.MAJOR, m.Level.SEVERE])
def test_a_participant_that_refuses_everything_ends_an_emergency_in_a_halt(level):
    """Each target is asked for once, and each is older than the one before: no rollback goes on for ever."""
    world = until(SnappedWorld(0), 7)
    world.command(m.Checkpoint())
    world.command(m.Checkpoint())
    until(world, 8)
    places = [one.step for one in world.state.checkpoints.catalogue]
    assert len(set(places)) < len(places), "no two checkpoints are of one step"
    asked = refusing(world, lambda _: False)
    world.command(m.RaiseEmergency(level=level))
    tick_until(world, lambda: world.state.run.phase is st.Phase.FROZEN, "the halt")
    steps = [find(world, m.RollbackBegun)[0].to_step, *(e.to_step for e in find(world, m.RollbackEscalated))]

    assert len(asked) == len(steps) == len(set(asked)) >= 2
    assert steps == sorted(set(steps), reverse=True)
    assert len(find(world, m.RollbackAborted)) == 1


def test_votes_and_late_returns_are_recorded_with_the_rollback():
    """The events name those that agreed, gave no answer, or were not back when training went on."""
    world = until(World(0), 7)
    world.trainer._prepared = lambda order: m.RollbackPreparedReport(
        rollback=order.rollback, participants=("seeds", "training"), seconds=0.1, abstained=("strategy",)
    )
    plain = world.trainer._roll_back

    def roll_back(to):
        plain(to)
        (report,) = (one for one in world.trainer.todo if isinstance(one, m.RolledBackReport))
        world.trainer.todo.remove(report)
        fields = {"step": report.step, "commit_s": 0.1, "confirm_s": 0.1, "late": ("strategy",)}
        world.trainer.todo.append(m.RolledBackReport(rollback=report.rollback, **fields))

    world.trainer._roll_back = roll_back
    world.command(m.Rollback())
    ended(world)
    (prepared,), (done,) = find(world, m.RollbackPrepared), find(world, m.RolledBack)

    assert (prepared.participants, prepared.abstained) == (("seeds", "training"), ("strategy",))
    assert done.late == ("strategy",)
    assert "participants had not gone back in time: strategy." in sentence(done)


def test_one_that_fails_when_it_goes_back_costs_the_trainer_if_no_target_is_left():
    """The live state is overwritten: the run goes on with a new trainer, and the checkpoint stays usable."""
    world = until(World(0), 7)
    world.trainer._roll_back = lambda to: world.trainer.todo.append(
        m.RollbackRefusedReport(
            rollback="r0001", file="participant plan", why="broken pipe", participant="plan", restored=True
        )
    )
    world.command(m.Rollback(epoch=1))
    world.run()

    assert len(find(world, m.RollbackAborted)) == 1
    assert find(world, m.CheckpointRejected) == []
    assert world.state.trainer.incarnation == 2
    assert living_steps(world) == list(range(1, TOTAL + 1))
