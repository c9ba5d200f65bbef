"""The strategy's vote in a rollback: asked beside the trainer's PREPARE, and awaited for a share of the time only."""

from __future__ import annotations

import pytest

from tests.core.simulate import find, tick_until, until_found
from tests.core.strategy.asked import StrategyWorld
from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.core.rules.table.decide import overdue


def rolling_back(epoch=2, **policy):
    """Return a world in which an operator's rollback to the end of epoch 1 has begun."""
    world = StrategyWorld(0, **policy)
    world.until_asked(1).answer(state=b"one")
    world.until_asked(epoch).answer(state=b"two")
    world.command(m.Rollback(epoch=1))
    return world


def commits(world):
    return [effect for effect in world.sent if isinstance(effect, m.CommitRollback)]


def test_the_trainer_goes_back_after_both_have_agreed():
    """It prepares meanwhile. The vote is recorded; its state is the target's."""
    world = rolling_back()
    (asked,) = world.votes
    until_found(world, m.RollbackPrepared)
    assert (commits(world), world.state.run.phase) == ([], st.Phase.ROLLING_BACK)
    world.vote()
    assert len(commits(world)) == 1
    until_found(world, m.RolledBack)

    assert [event.vote for event in find(world, m.StrategyVoted)] == [m.Vote.AGREED]
    assert asked.state == world.state.strategy.kept
    assert world.finish().state.run.phase is st.Phase.COMPLETED


def test_a_vote_before_the_trainer_is_prepared_commits_nothing_yet():
    """The intent must be durable first."""
    world = rolling_back()
    world.vote()
    assert commits(world) == []
    until_found(world, m.RollbackPrepared)
    assert len(commits(world)) == 1


@pytest.mark.parametrize("prepared_first", [True, False])
def test_a_refusal_leads_to_an_older_target_and_another_vote(prepared_first):
    """No checkpoint is rejected: it is intact. What the trainer says of the former target is void."""
    world = StrategyWorld(0)
    world.until_asked(2).answer()
    world.command(m.Rollback())
    if prepared_first:
        until_found(world, m.RollbackPrepared)
    first = world.state.rollbacks.open.checkpoint
    world.vote(m.Vote.REFUSED, "I have no memory of it")
    (escalated,) = find(world, m.RollbackEscalated)
    assert escalated.checkpoint != first
    assert "I have no memory of it" in escalated.why
    assert commits(world) == []
    world.vote()
    until_found(world, m.RolledBack)

    assert find(world, m.RolledBack)[0].checkpoint == escalated.checkpoint
    assert all(not one.rejected for one in world.state.checkpoints.catalogue)
    assert world.finish().state.run.phase is st.Phase.COMPLETED


def test_a_rollback_to_a_named_target_is_given_up_if_the_strategy_refuses_it():
    """An order that names its target means this one; training goes on."""
    world = rolling_back()
    world.vote(m.Vote.REFUSED, "no")
    (aborted,) = find(world, m.RollbackAborted)

    assert "participant strategy: no" in aborted.why
    assert world.finish().state.run.phase is st.Phase.COMPLETED
    assert find(world, m.RolledBack) == []


def test_a_strategy_that_does_not_vote_abstains_after_its_share():
    """A quarter of the tier's limit, counted from the choice of the target; the rollback waits for nobody longer."""
    world = rolling_back()
    until_found(world, m.RollbackPrepared)
    begun = world.state.rollbacks.open.target_mono
    assert overdue(world.state, m.Now(0, begun + 2_990_000_000)) is None
    late = overdue(world.state, m.Now(0, begun + 3_000_000_000))
    assert isinstance(late, m.VoteGiven)
    assert late.vote is m.Vote.ABSTAINED
    world.give(late)
    until_found(world, m.RolledBack)
    world.vote()

    assert [event.vote for event in find(world, m.StrategyVoted)] == [m.Vote.ABSTAINED]


@pytest.mark.parametrize("who", ["trainer", "daemon"])
def test_a_start_completes_a_rollback_without_a_vote(who):
    """Nobody can refuse it any more, and nobody is waited for."""
    world = rolling_back()
    until_found(world, m.RollbackPrepared)
    if who == "trainer":
        world.crash_trainer()
        world.votes.clear()
    else:
        world.restart_daemon()
    tick_until(world, lambda: find(world, m.RolledBack), "the rollback's end")

    assert find(world, m.StrategyVoted) == []
    assert world.finish().state.run.phase is st.Phase.COMPLETED


def test_without_a_strategy_nobody_votes():
    """The protocol is as it was: COMMIT follows the trainer's report."""
    world = StrategyWorld(0, strategy="none")
    tick_until(world, lambda: world.state.progress.epoch_finished >= 2, "epoch 2")
    world.command(m.Rollback(epoch=1))
    until_found(world, m.RolledBack)

    assert (world.votes, find(world, m.StrategyVoted)) == ([], [])
