"""Whether the strategy is asked, whether its vote is awaited, and whether either is overdue."""

from __future__ import annotations

from typing import Final, Protocol

from tolariad.core.boundary.slice import HasBoundary
from tolariad.core.checkpoints.slice import HasCheckpoints
from tolariad.core.health.slice import HasHealth
from tolariad.core.inputs import StrategyOverdue, VoteGiven
from tolariad.core.rollback import words as rb
from tolariad.core.rollback.slice import HasRollbacks
from tolariad.core.run import limit_ask
from tolariad.core.run.slice import HasRun, Phase
from tolariad.core.seeds.slice import HasSeeds
from tolariad.core.stability import Breaker, BreakerState, breaker_state
from tolariad.core.steps.slice import HasProgress
from tolariad.core.strategy import words as st
from tolariad.core.strategy.slice import HasStrategy
from tolariad.core.trainer.slice import HasTrainer

# Its breaker: the name of the budget.
STRATEGY_DEADLINE: Final = "strategy_deadline"
# The strategy has this part of a tier's limit to vote, as participants have (decision 0026).
_PART_OF_LIMIT: Final = 0.25
_ENDED: Final = (Phase.STOPPING, Phase.FROZEN, Phase.ROLLING_BACK, Phase.FAILED, Phase.COMPLETED, Phase.STOPPED)


class ActsSlices(HasRun, HasSeeds, Protocol):
    """The slices that tell whether there is a strategy."""


class MayAskSlices(
    HasRun,
    HasProgress,
    HasTrainer,
    HasCheckpoints,
    HasRollbacks,
    HasHealth,
    HasBoundary,
    HasSeeds,
    HasStrategy,
    Protocol,
):
    """The slices that a question depends on."""


class OverdueSlices(HasRun, HasTrainer, HasRollbacks, HasHealth, HasBoundary, HasSeeds, HasStrategy, Protocol):
    """The slices with what is awaited, and for how long."""


class VotesSlices(HasRun, HasTrainer, HasRollbacks, HasSeeds, HasStrategy, Protocol):
    """The slices that a vote depends on."""


def strategy_acts(state: ActsSlices) -> bool:
    """Return whether the run has a strategy. The default policy acts by itself only on a model with slots."""
    name = state.run.policy.strategy
    return name != st.NONE and (name != st.AUTO or bool(state.seeds.slots))


def strategy_limit_s(state: HasHealth) -> float:
    """Return how long an answer is awaited, in seconds."""
    return state.overruns.limit_of(STRATEGY_DEADLINE)


def strategy_is_refused(state: HasHealth, mono: int) -> bool:
    """Return whether the breaker is open, so that nobody is asked. A half-open one lets a question pass."""
    breaker = state.overruns.breakers.get(STRATEGY_DEADLINE, Breaker())
    return breaker_state(breaker, state.overruns.rule_of(STRATEGY_DEADLINE), mono / 1e9) is BreakerState.OPEN


def may_ask(state: MayAskSlices, epoch: int, mono: int) -> bool:
    """Return whether the strategy is asked after `epoch`: there is one, and training goes on after that."""
    if not strategy_acts(state) or strategy_is_refused(state, mono) or not state.trainer.alive:
        return False
    goes_back = state.rollbacks.open is not None or state.rollbacks.asked is not None
    is_ending = state.run.phase in _ENDED or state.run.stop is not None or state.checkpoints.is_ending
    return not goes_back and not is_ending and not limit_ask.is_last_epoch(state, epoch)


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


def vote_limit_s(state: HasRun, tier: rb.Tier) -> float:
    """Return the strategy's share of the tier's limit, in seconds."""
    policy = state.run.policy
    return _PART_OF_LIMIT * (policy.fast_budget_s if tier is rb.Tier.FAST else policy.full_budget_s)


def strategy_overdue(state: OverdueSlices, mono: int) -> StrategyOverdue | VoteGiven | None:
    """Return the input that an answer or a vote is overdue, or None.

    The daemon's own timer comes first. This one counts if the daemon's loop hangs.
    """
    asked, question = state.strategy.asked, state.boundary.asked
    if asked is not None and question is not None and mono - asked.mono >= strategy_limit_s(state) * 1e9:
        return StrategyOverdue(generation=question.generation)
    opened = state.rollbacks.open
    if opened is None or not opened.target_mono or not awaits_vote(state):
        return None
    if mono - opened.target_mono < vote_limit_s(state, opened.tier) * 1e9:
        return None
    return VoteGiven(rollback=opened.id, checkpoint=opened.checkpoint, vote=st.Vote.ABSTAINED)
