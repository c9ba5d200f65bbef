"""The strategy's vote in a rollback: asked beside the trainer's PREPARE, and awaited for a share of the time only."""

from __future__ import annotations

import pytest

from tests.core.simulate import find, tick_until, until_found
from tests.core.strategy.asked import StrategyWorld
from tolariad.core.decide import overdue
from tolariad.core.inputs import Now, VoteGiven
from tolariad.core.rollback import words as rb
from tolariad.core.run.slice import Phase
from tolariad.core.strategy import words as st


def rolling_back(epoch=2, **policy):
    """Return a world in which an operator's rollback to the end of epoch 1 has begun."""
    world = StrategyWorld(0, **policy)
    world.until_asked(1).answer(state=b"one")
    world.until_asked(epoch).answer(state=b"two")
    world.command(rb.Rollback(epoch=1))
    return world


def commits(world):
    return [effect for effect in world.sent if isinstance(effect, rb.CommitRollback)]


def test_the_trainer_goes_back_after_both_have_agreed():
    """It prepares meanwhile. The vote is recorded; its state is the target's."""
    world = rolling_back()
    (asked,) = world.votes
    until_found(world, rb.RollbackPrepared)
    assert (commits(world), world.state.run.phase) == ([], Phase.ROLLING_BACK)
    world.vote()
    assert len(commits(world)) == 1
    until_found(world, rb.RolledBack)

    assert [event.vote for event in find(world, st.StrategyVoted)] == [st.Vote.AGREED]
    assert asked.state == world.state.strategy.kept
    assert world.finish().state.run.phase is Phase.COMPLETED


def test_a_vote_before_the_trainer_is_prepared_commits_nothing_yet():
    """The intent must be durable first."""
    world = rolling_back()
    world.vote()
    assert commits(world) == []
    until_found(world, rb.RollbackPrepared)
    assert len(commits(world)) == 1


@pytest.mark.parametrize("prepared_first", [True, False])
def test_a_refusal_leads_to_an_older_target_and_another_vote(prepared_first):
    """No checkpoint is rejected: it is intact. What the trainer says of the former target is void."""
    world = StrategyWorld(0)
    world.until_asked(2).answer()
    world.command(rb.Rollback())
    if prepared_first:
        until_found(world, rb.RollbackPrepared)
    first = world.state.rollbacks.open.checkpoint
    world.vote(st.Vote.REFUSED, "I have no memory of it")
    (escalated,) = find(world, rb.RollbackEscalated)
    assert escalated.checkpoint != first
    assert "I have no memory of it" in escalated.why
    assert commits(world) == []
    world.vote()
    until_found(world, rb.RolledBack)

    assert find(world, rb.RolledBack)[0].checkpoint == escalated.checkpoint
    assert all(not one.rejected for one in world.state.checkpoints.catalogue)
    assert world.finish().state.run.phase is Phase.COMPLETED


def test_a_rollback_to_a_named_target_is_given_up_if_the_strategy_refuses_it():
    """An order that names its target means this one; training goes on."""
    world = rolling_back()
    world.vote(st.Vote.REFUSED, "no")
    (aborted,) = find(world, rb.RollbackAborted)

    assert "participant strategy: no" in aborted.why
    assert world.finish().state.run.phase is Phase.COMPLETED
    assert find(world, rb.RolledBack) == []


def test_a_strategy_that_does_not_vote_abstains_after_its_share():
    """A quarter of the tier's limit, counted from the choice of the target; the rollback waits for nobody longer."""
    world = rolling_back()
    until_found(world, rb.RollbackPrepared)
    begun = world.state.rollbacks.open.target_mono
    assert overdue(world.state, Now(0, begun + 2_990_000_000)) is None
    late = overdue(world.state, Now(0, begun + 3_000_000_000))
    assert isinstance(late, VoteGiven)
    assert late.vote is st.Vote.ABSTAINED
    world.give(late)
    until_found(world, rb.RolledBack)
    world.vote()

    assert [event.vote for event in find(world, st.StrategyVoted)] == [st.Vote.ABSTAINED]


@pytest.mark.parametrize("who", ["trainer", "daemon"])
def test_a_start_completes_a_rollback_without_a_vote(who):
    """Nobody can refuse it any more, and nobody is waited for."""
    world = rolling_back()
    until_found(world, rb.RollbackPrepared)
    if who == "trainer":
        world.crash_trainer()
        world.votes.clear()
    else:
        world.restart_daemon()
    tick_until(world, lambda: find(world, rb.RolledBack), "the rollback's end")

    assert find(world, st.StrategyVoted) == []
    assert world.finish().state.run.phase is Phase.COMPLETED


def test_without_a_strategy_nobody_votes():
    """The protocol is as it was: COMMIT follows the trainer's report."""
    world = StrategyWorld(0, strategy="none")
    tick_until(world, lambda: world.state.progress.epoch_finished >= 2, "epoch 2")
    world.command(rb.Rollback(epoch=1))
    until_found(world, rb.RolledBack)

    assert (world.votes, find(world, st.StrategyVoted)) == ([], [])
