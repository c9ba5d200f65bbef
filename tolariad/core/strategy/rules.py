"""The rules of the strategy: when it is asked, what becomes of its answer, its state, its vote.

An epoch's end that asks: StrategyAsked -> the daemon asks -> StrategyAnswered -> its commands in order, a rollback
first -> Continue. A command becomes the order that an operator could give, and is accepted or refused by the same rule.
If the question has no answer, nothing is changed. Nothing is asked in a re-run: the orders of an answer are boundary
orders, which the script repeats. A question that the end of a trainer closed is asked again before the next one makes
an update, so a crash changes no decision.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from msgspec.structs import replace

from tolariad.core.architecture.slice import HasArchitecture
from tolariad.core.base import Actor, Refusal
from tolariad.core.boundary import words as bw
from tolariad.core.boundary.slice import WAITING_MAX, HasBoundary
from tolariad.core.checkpoints.slice import HasCheckpoints
from tolariad.core.control import words as cv
from tolariad.core.control.slice import HasControl
from tolariad.core.decision import Decision
from tolariad.core.engine import At, Numbered
from tolariad.core.health.budgets import FED_BREAKERS
from tolariad.core.health.slice import HasHealth
from tolariad.core.inputs import CommandReceived, StrategyOverdue, StrategyReply, VoteGiven
from tolariad.core.rates import hyper_words as hp
from tolariad.core.rollback import words as rb
from tolariad.core.rollback.known_slice import HasKnown, Known
from tolariad.core.rollback.slice import HasRollbacks
from tolariad.core.run.slice import TERMINAL, HasRun, Phase
from tolariad.core.seeds import ask as seeds
from tolariad.core.seeds.slice import HasSeeds
from tolariad.core.seeds.words import SeedMoveOrdered
from tolariad.core.steps import words as sv
from tolariad.core.steps.slice import HasProgress
from tolariad.core.strategy import ask as strategy
from tolariad.core.strategy import words as st
from tolariad.core.strategy.slice import PROGRAM, HasStrategy
from tolariad.core.trainer import words as tv
from tolariad.core.trainer.slice import HasTrainer


class Reads(
    Numbered,
    HasRun,
    HasProgress,
    HasTrainer,
    HasCheckpoints,
    HasControl,
    HasRollbacks,
    HasHealth,
    HasBoundary,
    HasKnown,
    HasArchitecture,
    HasSeeds,
    HasStrategy,
    Protocol,
):
    """The slices that the rules of the strategy read."""


S = TypeVar("S", bound=Reads)
_VOID: Final = "the run goes back or halts by an order of the same answer, so its other commands are void"


# -- questions ---------------------------------------------------------------------------------------------------------


def ask(state: Reads, event: sv.EpochFinished, at: At[Reads]) -> Decision | None:
    """Ask the strategy after an epoch. Training goes on after its answer, or after its time."""
    return _ask(state, event.epoch) if strategy.may_ask(state, event.epoch, at.now.mono) else None


def ask_again(state: Reads, _: tv.ExecutionContextRecorded, at: At[Reads]) -> Decision | None:
    """Ask what the end of the former trainer left without an answer. The gate is shut until it is there."""
    epoch = state.strategy.owed
    return _ask(state, epoch) if strategy.is_owed(state) and strategy.may_ask(state, epoch, at.now.mono) else None


def _ask(state: Reads, epoch: int) -> Decision:
    generation = state.boundary.next_generation
    effect = st.AskStrategy(
        epoch=epoch, generation=generation, state=state.strategy.kept, limit_s=strategy.strategy_limit_s(state)
    )
    return Decision((st.StrategyAsked(epoch=epoch, generation=generation),), (effect,))


def overtaken(
    _: Reads, __: rb.RollbackBegun | rb.RolledBack | tv.TrainerDied | tv.TrainerEnded, at: At[Reads]
) -> Decision | None:
    """Record the end of a question that this event closed: nobody waits for its answer any more."""
    asked, question = at.was.strategy.asked, at.was.boundary.asked
    if asked is None or question is None:
        return None
    end = st.StrategyTimedOut(
        generation=question.generation,
        epoch=question.epoch,
        reason=st.NoAnswer.OVERTAKEN,
        fallback="nobody waits for it any more",
    )
    return Decision((end,))


def overdue(state: Reads, given: StrategyOverdue, _: At[Reads]) -> Decision | None:
    """End a question whose time is over: nothing is changed."""
    if not state.boundary.awaits(given.generation):
        return None
    why = f"it did not answer in {strategy.strategy_limit_s(state):.3g} s"
    return Decision((_unanswered(state, st.NoAnswer.LATE, why),))


def _unanswered(state: Reads, reason: st.NoAnswer, why: str) -> st.StrategyTimedOut:
    """Return the end of the open question without an answer."""
    asked, question = state.strategy.asked, state.boundary.asked
    end = st.StrategyTimedOut(
        generation=question.generation if question is not None else 0,
        epoch=question.epoch if question is not None else 0,
        reason=reason,
        fallback=why,
    )
    return end.caused_by(asked.cause if asked is not None else None)


# -- answers -----------------------------------------------------------------------------------------------------------


def answered(state: Reads, given: StrategyReply, _: At[Reads]) -> Decision | None:
    """Record the answer to the open question. Any other is void, and recorded as such."""
    if not state.boundary.awaits(given.generation):
        is_known = 0 < given.generation <= state.boundary.generations
        void = st.StrategyAnswerVoided(
            generation=given.generation, commands=len(given.commands), seconds=given.spans.answer
        )
        # Without an answer there is nothing that could be void.
        return Decision((void,)) if is_known and not given.fallback else None
    if given.fallback:
        reason = st.NoAnswer.LATE if given.is_late else st.NoAnswer.FAILED
        end = _unanswered(state, reason, given.fallback)
        return Decision((replace(end, spans=given.spans, misread=given.misread),))
    asked, question = state.strategy.asked, state.boundary.asked
    cause = asked.cause if asked is not None else None
    epoch = question.epoch if question is not None else 0
    fresh, repeated = _sorted_out(state, given.commands)
    answer = st.StrategyAnswered.of(given, epoch=epoch, commands=fresh, repeated=repeated).caused_by(cause)
    keeps = given.state != state.strategy.kept and len(state.boundary.waiting) < WAITING_MAX
    # Before the answer, so that the trainer gets the state before the order to continue.
    kept = (st.StrategyStateGiven(epoch=epoch, state=given.state).caused_by(cause),) if keeps else ()
    return Decision((*kept, answer))


def _sorted_out(
    state: Reads, commands: tuple[st.StrategyCommand, ...]
) -> tuple[tuple[st.StrategyCommand, ...], tuple[str, ...]]:
    """Return the commands that are new, and the ids of the others: a command acts once, however often it comes."""
    fresh: list[st.StrategyCommand] = []
    repeated: list[str] = []
    seen: set[str] = set()
    for one in commands:
        is_known = bool(one.id) and (one.id in seen or state.control.outcome(one.id) is not None)
        seen.add(one.id)
        if is_known:
            repeated.append(one.id)
        else:
            fresh.append(one)
    return tuple(fresh), tuple(repeated)


# -- commands ----------------------------------------------------------------------------------------------------------


def command(_: Reads, event: st.StrategyAnswered, __: At[Reads]) -> Decision | None:
    """Take the commands one after the other, a rollback first: it makes the others void."""
    numbered = sorted(enumerate(event.commands, 1), key=lambda one: not isinstance(one[1].order, rb.Rollback))
    each = (st.StrategyCommanded(number=number, kind=one.kind, id=one.id) for number, one in numbered)
    return Decision(tuple(each)) if numbered else None


def obey(
    receive: Callable[[S, CommandReceived, At[S]], Decision],
) -> Callable[[S, st.StrategyCommanded, At[S]], Decision | None]:
    """Return the rule that gives the order of a command. `receive` answers it as an operator's."""

    def rule(state: S, event: st.StrategyCommanded, at: At[S]) -> Decision | None:
        """Give the order that a command of the strategy asks for, or record why not."""
        if not 1 <= event.number <= len(state.strategy.commands):
            return None
        one = state.strategy.commands[event.number - 1]
        actor = Actor(program=PROGRAM, reason=one.order.reason if one.order is not None else "")
        refused = cv.CommandRefused(command=one.kind, id=one.id, error="Refused", why="", actor=actor)
        why = _refusal(state, one, at.now.wall)
        if why or one.order is None:
            return Decision((replace(refused, why=why),))
        decision = receive(state, CommandReceived(command=replace(one.order, id=one.id), actor=actor), at)
        if isinstance(decision.answer, Refusal):
            # Under its name in Leyline, which the strategy's author knows.
            return Decision((replace(refused, error=decision.answer.error, why=decision.answer.why),))
        return replace(decision, answer=None)

    return rule


def _refusal(state: Reads, one: st.StrategyCommand, wall: int) -> str:
    """Return why a command is not even tried, or ""."""
    if one.refused:
        return one.refused
    if one.order is None:
        return "it asks for nothing"
    goes_back = state.rollbacks.open is not None or state.rollbacks.asked is not None
    if goes_back or state.run.phase is Phase.FROZEN:
        return _VOID
    if one.expires and wall >= one.expires:
        late = (wall - one.expires) / 1e6
        return f"it had to begin {late:.0f} ms ago (`execution_deadline_ms` after `issued_at`)"
    return ""


def adapt_seed(state: Reads, order: st.AdaptSeed) -> SeedMoveOrdered | Refusal:
    """Order a move of a seed, or refuse it: by the rules that hold for an operator too."""
    return seeds.move_seed(state, order.slot, order.stage, order.blueprint, order.parameters)


def set_breaker(state: Reads, order: st.SetBreaker) -> st.BreakerSet | Refusal:
    """Open or close a breaker, or refuse to."""
    if state.run.phase in TERMINAL:
        return Refusal("WrongPhase", f"the run is {state.run.phase.value}")
    if order.breaker not in FED_BREAKERS:
        return Refusal("NotFound", f"there is no breaker {order.breaker!r}; there are {', '.join(FED_BREAKERS)}")
    if not state.overruns.act and order.breaker != "lr":
        return Refusal("Refused", "budgets.act is false, so overruns are only recorded and no breaker opens")
    return st.BreakerSet(breaker=order.breaker, state=order.state)


def hyper_applied(state: Reads, report: bw.BoundaryOrderReport, _: At[Reads]) -> Decision | None:
    """Record that hyper-parameters were set, or that they were refused. An order that has ended is skipped."""
    waiting = state.boundary.find(report.order, hp.SetHyperparameters)
    if waiting is None:
        return None
    at, found = waiting
    if report.refused:
        return Decision((hp.HyperparametersAborted.of(found, why=report.refused).caused_by(at),))
    return Decision((hp.HyperparametersChanged.of(found, report, number=state.boundary.acted + 1).caused_by(at),))


def state_kept(state: Reads, report: bw.BoundaryOrderReport, _: At[Reads]) -> Decision | None:
    """Record that the training holds the strategy's state, or why it does not."""
    waiting = state.boundary.find(report.order, st.KeepStrategyState)
    if waiting is None:
        return None
    at, found = waiting
    if report.refused:
        return Decision((st.StrategyStateDropped(why=report.refused).caused_by(at),))
    return Decision((st.StrategyStateKept.of(found, report, number=state.boundary.acted + 1).caused_by(at),))


# -- votes -------------------------------------------------------------------------------------------------------------


def ask_vote(state: Reads, _: rb.RollbackBegun | rb.RollbackEscalated, __: At[Reads]) -> Decision | None:
    """Ask the strategy whether it can go back to its state at the target. The trainer prepares meanwhile."""
    opened = state.rollbacks.open
    if opened is None or not strategy.awaits_vote(state):
        return None
    known = state.known.held.get(opened.checkpoint, Known())
    effect = st.AskVote(
        rollback=opened.id,
        checkpoint=opened.checkpoint,
        state=known.strategy.kept,
        limit_s=strategy.vote_limit_s(state, opened.tier),
    )
    return Decision((), (effect,))


def voted(state: Reads, given: VoteGiven, _: At[Reads]) -> Decision | None:
    """Record the vote on the open rollback's present target; any other is void."""
    opened = state.rollbacks.open
    if opened is None or (opened.id, opened.checkpoint) != (given.rollback, given.checkpoint):
        return None
    if not strategy.awaits_vote(state):
        return None
    return Decision((st.StrategyVoted.of(given).caused_by(opened.cause),))
