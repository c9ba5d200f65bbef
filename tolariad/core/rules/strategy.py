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

from tolariad.core import messages as m
from tolariad.core import queries as q
from tolariad.core import state as st
from tolariad.core.calc.health.budgets import FED_BREAKERS
from tolariad.core.calc.noise import ERRORS
from tolariad.core.calc.seeds.stages import Stage
from tolariad.core.decision import Decision
from tolariad.core.engine import At, Numbered


class Reads(
    Numbered,
    st.HasRun,
    st.HasProgress,
    st.HasTrainer,
    st.HasCheckpoints,
    st.HasControl,
    st.HasRollbacks,
    st.HasHealth,
    st.HasBoundary,
    st.HasCopies,
    st.HasArchitecture,
    st.HasSeeds,
    st.HasStrategy,
    Protocol,
):
    """The slices that the rules of the strategy read."""


S = TypeVar("S", bound=Reads)
_VOID: Final = "the run goes back or halts by an order of the same answer, so its other commands are void"


# -- questions ---------------------------------------------------------------------------------------------------------


def ask(state: Reads, event: m.EpochFinished, at: At[Reads]) -> Decision | None:
    """Ask the strategy after an epoch. Training goes on after its answer, or after its time."""
    return _ask(state, event.epoch) if q.may_ask(state, event.epoch, at.now.mono) else None


def ask_again(state: Reads, _: m.ExecutionContextRecorded, at: At[Reads]) -> Decision | None:
    """Ask what the end of the former trainer left without an answer. The gate is shut until it is there."""
    epoch = state.strategy.owed
    return _ask(state, epoch) if q.is_owed(state) and q.may_ask(state, epoch, at.now.mono) else None


def _ask(state: Reads, epoch: int) -> Decision:
    generation = state.boundary.next_generation
    effect = m.AskStrategy(
        epoch=epoch, generation=generation, state=state.strategy.kept, limit_s=q.strategy_limit_s(state)
    )
    return Decision((m.StrategyAsked(epoch=epoch, generation=generation),), (effect,))


def overtaken(
    _: Reads, __: m.RollbackBegun | m.RolledBack | m.TrainerDied | m.TrainerEnded, at: At[Reads]
) -> Decision | None:
    """Record the end of a question that this event closed: nobody waits for its answer any more."""
    asked, question = at.was.strategy.asked, at.was.boundary.asked
    if asked is None or question is None:
        return None
    end = m.StrategyTimedOut(
        generation=question.generation,
        epoch=question.epoch,
        reason=m.NoAnswer.OVERTAKEN,
        fallback="nobody waits for it any more",
    )
    return Decision((end,))


def overdue(state: Reads, given: m.StrategyOverdue, _: At[Reads]) -> Decision | None:
    """End a question whose time is over: nothing is changed."""
    if not state.boundary.awaits(given.generation):
        return None
    why = f"it did not answer in {q.strategy_limit_s(state):.3g} s"
    return Decision((_unanswered(state, m.NoAnswer.LATE, why),))


def _unanswered(state: Reads, reason: m.NoAnswer, why: str) -> m.StrategyTimedOut:
    """Return the end of the open question without an answer."""
    asked, question = state.strategy.asked, state.boundary.asked
    end = m.StrategyTimedOut(
        generation=question.generation if question is not None else 0,
        epoch=question.epoch if question is not None else 0,
        reason=reason,
        fallback=why,
    )
    return end.caused_by(asked.cause if asked is not None else None)


# -- answers -----------------------------------------------------------------------------------------------------------


def answered(state: Reads, given: m.StrategyReply, _: At[Reads]) -> Decision | None:
    """Record the answer to the open question. Any other is void, and recorded as such."""
    if not state.boundary.awaits(given.generation):
        is_known = 0 < given.generation <= state.boundary.generations
        void = m.StrategyAnswerVoided(
            generation=given.generation, commands=len(given.commands), seconds=given.spans.answer
        )
        # Without an answer there is nothing that could be void.
        return Decision((void,)) if is_known and not given.fallback else None
    if given.fallback:
        reason = m.NoAnswer.LATE if given.is_late else m.NoAnswer.FAILED
        end = _unanswered(state, reason, given.fallback)
        return Decision((replace(end, spans=given.spans, misread=given.misread),))
    asked, question = state.strategy.asked, state.boundary.asked
    cause = asked.cause if asked is not None else None
    epoch = question.epoch if question is not None else 0
    fresh, repeated = _sorted_out(state, given.commands)
    answer = m.StrategyAnswered.of(given, epoch=epoch, commands=fresh, repeated=repeated).caused_by(cause)
    keeps = given.state != state.strategy.kept and len(state.boundary.waiting) < st.WAITING_MAX
    # Before the answer, so that the trainer gets the state before the order to continue.
    keep = m.OrderGiven(order=m.KeepStrategyState(epoch=epoch, state=given.state))
    kept = (keep.caused_by(cause),) if keeps else ()
    return Decision((*kept, answer))


def _sorted_out(
    state: Reads, commands: tuple[m.StrategyCommand, ...]
) -> tuple[tuple[m.StrategyCommand, ...], tuple[str, ...]]:
    """Return the commands that are new, and the ids of the others: a command acts once, however often it comes."""
    fresh: list[m.StrategyCommand] = []
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


def command(_: Reads, event: m.StrategyAnswered, __: At[Reads]) -> Decision | None:
    """Take the commands one after the other, a rollback first: it makes the others void."""
    numbered = sorted(enumerate(event.commands, 1), key=lambda one: not isinstance(one[1].order, m.Rollback))
    each = (m.StrategyCommanded(number=number, kind=one.kind, id=one.id) for number, one in numbered)
    return Decision(tuple(each)) if numbered else None


def obey(
    receive: Callable[[S, m.CommandReceived, At[S]], Decision],
) -> Callable[[S, m.StrategyCommanded, At[S]], Decision | None]:
    """Return the rule that gives the order of a command. `receive` answers it as an operator's."""

    def rule(state: S, event: m.StrategyCommanded, at: At[S]) -> Decision | None:
        """Give the order that a command of the strategy asks for, or record why not."""
        if not 1 <= event.number <= len(state.strategy.commands):
            return None
        one = state.strategy.commands[event.number - 1]
        actor = m.Actor(program=st.PROGRAM, reason=one.order.reason if one.order is not None else "")
        refused = m.CommandRefused(command=one.kind, id=one.id, error="Refused", why="", actor=actor)
        why = _refusal(state, one, at.now.wall)
        if why or one.order is None:
            return Decision((replace(refused, why=why),))
        decision = receive(state, m.CommandReceived(command=replace(one.order, id=one.id), actor=actor), at)
        if isinstance(decision.answer, m.Refusal):
            # Under its name in Leyline, which the strategy's author knows.
            return Decision((replace(refused, error=decision.answer.error, why=decision.answer.why),))
        return replace(decision, answer=None)

    return rule


def _refusal(state: Reads, one: m.StrategyCommand, wall: int) -> str:
    """Return why a command is not even tried, or ""."""
    if one.refused:
        return one.refused
    if one.order is None:
        return "it asks for nothing"
    goes_back = state.rollbacks.open is not None or state.rollbacks.asked is not None
    if goes_back or state.run.phase is st.Phase.FROZEN:
        return _VOID
    told, step = state.strategy, state.progress.step
    if isinstance(one.order, m.Rollback) and told.times_back >= st.TIMES_BACK_MAX and step <= told.back_from:
        return (
            f"the strategy has gone back {told.times_back} times from step {told.back_from} or before it, and that did "
            "not help; training goes on. Past that step it may go back again"
        )
    if one.expires and wall >= one.expires:
        late = (wall - one.expires) / 1e6
        return f"it had to begin {late:.0f} ms ago (`execution_deadline_ms` after `issued_at`)"
    return ""


def adapt_seed(state: Reads, order: m.AdaptSeed) -> m.OrderGiven | m.Refusal:
    """Order a move of a seed, or refuse it: by the rules that hold for an operator too.

    A strategy compares means of validations. So the trainer measures whether the effect is more than chance, before the
    seed becomes a permanent part of the model. An operator may have other reasons.
    """
    moved = q.move_seed(state, order.slot, order.stage, order.blueprint, order.parameters)
    if order.stage is not Stage.FOSSILIZED or isinstance(moved, m.Refusal):
        return moved
    return replace(moved, order=replace(moved.order, errors=ERRORS))


def set_breaker(state: Reads, order: m.SetBreaker) -> m.BreakerSet | m.Refusal:
    """Open or close a breaker, or refuse to."""
    if state.run.phase in st.TERMINAL:
        return m.Refusal("WrongPhase", f"the run is {state.run.phase.value}")
    if order.breaker not in FED_BREAKERS:
        return m.Refusal("NotFound", f"there is no breaker {order.breaker!r}; there are {', '.join(FED_BREAKERS)}")
    if not state.overruns.act and order.breaker != "lr":
        return m.Refusal("Refused", "budgets.act is false, so overruns are only recorded and no breaker opens")
    return m.BreakerSet(breaker=order.breaker, state=order.state)


# -- votes -------------------------------------------------------------------------------------------------------------


def ask_vote(state: Reads, _: m.RollbackBegun | m.RollbackEscalated, __: At[Reads]) -> Decision | None:
    """Ask the strategy whether it can go back to its state at the target. The trainer prepares meanwhile."""
    opened = state.rollbacks.open
    if opened is None or not q.awaits_vote(state):
        return None
    branch = state.copies.held.get(opened.checkpoint, st.Branch())
    effect = m.AskVote(
        rollback=opened.id,
        checkpoint=opened.checkpoint,
        state=branch.strategy.kept,
        limit_s=q.vote_limit_s(state, opened.tier),
    )
    return Decision((), (effect,))


def voted(state: Reads, given: m.VoteGiven, _: At[Reads]) -> Decision | None:
    """Record the vote on the open rollback's present target; any other is void."""
    opened = state.rollbacks.open
    if opened is None or (opened.id, opened.checkpoint) != (given.rollback, given.checkpoint):
        return None
    if not q.awaits_vote(state):
        return None
    return Decision((m.StrategyVoted.of(given).caused_by(opened.cause),))
