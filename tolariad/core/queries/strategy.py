"""Whether the strategy is asked, whether its vote is awaited, and whether either is overdue."""

from __future__ import annotations

from typing import Final, Protocol

from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.core.calc.health.breaker import Breaker, BreakerState, breaker_state
from tolariad.core.queries import run_limit

# Its breaker: the name of the budget.
STRATEGY_DEADLINE: Final = "strategy_deadline"
# The strategy has this part of a tier's limit to vote, as participants have (decision 0026).
_PART_OF_LIMIT: Final = 0.25
_ENDED: Final = (
    st.Phase.STOPPING,
    st.Phase.FROZEN,
    st.Phase.ROLLING_BACK,
    st.Phase.FAILED,
    st.Phase.COMPLETED,
    st.Phase.STOPPED,
)


class ActsSlices(st.HasRun, st.HasSeeds, Protocol):
    """The slices that tell whether there is a strategy."""


class MayAskSlices(
    st.HasRun,
    st.HasProgress,
    st.HasTrainer,
    st.HasCheckpoints,
    st.HasRollbacks,
    st.HasHealth,
    st.HasBoundary,
    st.HasSeeds,
    st.HasStrategy,
    Protocol,
):
    """The slices that a question depends on."""


class OverdueSlices(
    st.HasRun, st.HasTrainer, st.HasRollbacks, st.HasHealth, st.HasBoundary, st.HasSeeds, st.HasStrategy, Protocol
):
    """The slices with what is awaited, and for how long."""


class VotesSlices(st.HasRun, st.HasTrainer, st.HasRollbacks, st.HasSeeds, st.HasStrategy, Protocol):
    """The slices that a vote depends on."""


def strategy_acts(state: ActsSlices) -> bool:
    """Return whether the run has a strategy. The default policy acts by itself only on a model with slots."""
    name = state.run.policy.strategy
    return name != m.NONE and (name != m.AUTO or bool(state.seeds.slots))


def strategy_limit_s(state: st.HasHealth) -> float:
    """Return how long an answer is awaited, in seconds."""
    return state.overruns.limit_of(STRATEGY_DEADLINE)


def strategy_is_refused(state: st.HasHealth, mono: int) -> bool:
    """Return whether the breaker is open, so that nobody is asked. A half-open one lets a question pass."""
    breaker = state.overruns.breakers.get(STRATEGY_DEADLINE, Breaker())
    return breaker_state(breaker, state.overruns.rule_of(STRATEGY_DEADLINE), mono / 1e9) is BreakerState.OPEN


def may_ask(state: MayAskSlices, epoch: int, mono: int) -> bool:
    """Return whether the strategy is asked after `epoch`: there is one, and training goes on after that."""
    if not strategy_acts(state) or strategy_is_refused(state, mono) or not state.trainer.alive:
        return False
    goes_back = state.rollbacks.open is not None or state.rollbacks.asked is not None
    is_ending = state.run.phase in _ENDED or state.run.stop is not None or state.checkpoints.is_ending
    return not goes_back and not is_ending and not run_limit.is_last_epoch(state, epoch)


def is_owed(state: MayAskSlices) -> bool:
    """Return whether the end of a trainer closed a question, and training still is where it was asked."""
    owed = state.strategy.owed
    return owed > 0 and state.progress.place == (owed + 1, 0)


def awaits_vote(state: VotesSlices) -> bool:
    """Return whether the open rollback awaits the strategy's vote on its present target."""
    opened = state.rollbacks.open
    if opened is None or not state.trainer.alive or not strategy_acts(state):
        return False
    voted = state.strategy.voted_rollback, state.strategy.voted_checkpoint
    return voted != (opened.id, opened.checkpoint)


def vote_limit_s(state: st.HasRun, tier: m.Tier) -> float:
    """Return the strategy's share of the tier's limit, in seconds."""
    policy = state.run.policy
    return _PART_OF_LIMIT * (policy.fast_budget_s if tier is m.Tier.FAST else policy.full_budget_s)


def strategy_overdue(state: OverdueSlices, mono: int) -> m.StrategyOverdue | m.VoteGiven | None:
    """Return the input that an answer or a vote is overdue, or None.

    The daemon's own timer comes first. This one counts if the daemon's loop hangs.
    """
    asked, question = state.strategy.asked, state.boundary.asked
    if asked is not None and question is not None and mono - asked.mono >= strategy_limit_s(state) * 1e9:
        return m.StrategyOverdue(generation=question.generation)
    opened = state.rollbacks.open
    if opened is None or not opened.target_mono or not awaits_vote(state):
        return None
    if mono - opened.target_mono < vote_limit_s(state, opened.tier) * 1e9:
        return None
    return m.VoteGiven(rollback=opened.id, checkpoint=opened.checkpoint, vote=m.Vote.ABSTAINED)
