"""The strategy as recorded in the journal: slice, apply table.

Invariants: `kept` is the state that the next capture of the training contains, so a rollback brings back the one that
its target contains. Training made no update since the question that `owed` is about was closed: the next trainer asks
it again.
"""

from typing import Annotated, Final, Protocol

import msgspec
from msgspec.structs import replace

from tolariad.core import messages as m
from tolariad.core.calc.bounds import storable
from tolariad.core.state.fates import OF_THE_TRAINER, anew, survives
from tolariad.core.state.fold import ApplyTable, by_order

# The program of the actor of everything that the strategy orders.
PROGRAM: Final = "strategy"


class Asked(msgspec.Struct, frozen=True):
    """The open question: its event, the epoch that it is about, and when it was asked, in monotonic ns."""

    cause: m.Cause
    epoch: int
    mono: int


class BranchStrategy(msgspec.Struct, frozen=True, omit_defaults=True):
    """What of the strategy belongs to a branch: its own state, and what it is told of the epoch."""

    kept: bytes = b""
    answered_epoch: int = 0
    skipped: int = 0
    findings: int = 0
    ended_steps: int = 0
    ended_skipped: int = 0
    ended_findings: int = 0


_LEFT: Final = anew("the run leaves the epoch's end that the question was about")
_NEWEST: Final = survives("the newest vote or answer, or a counter")
_ENDLESS: Final = survives("it keeps the strategy from ordering rollbacks without end")
# A strategy may go back this often from one place: the third time would not help either.
TIMES_BACK_MAX: Final = 2


class Strategy(BranchStrategy, frozen=True):
    """Slice of RunState. `commands`: the newest answer's. `kept`: the strategy's state.

    `owed`: the epoch whose question the end of a trainer closed, or 0. `voted_…`: rollback and target of the newest
    vote. `rollbacks`: how many the strategy ordered. `back_from`: the farthest step from which it went back;
    `times_back`: how often it did since the run first came there. `asked_total`, `unanswered`: questions, and those
    without an answer that nothing overtook. `fallback`: why the newest question has no answer, "" if it has one.
    `answered_epoch`: the newest epoch with an answer. `skipped`, `findings`: how many the epoch has so far. `ended_…`:
    of the newest epoch that has ended, for the packet. `device`: the trainer's, as torch names it.
    """

    asked: Annotated[Asked | None, _LEFT] = None
    commands: Annotated[tuple[m.StrategyCommand, ...], _NEWEST] = ()
    owed: Annotated[int, _LEFT] = 0
    voted_rollback: Annotated[str, _NEWEST] = ""
    voted_checkpoint: Annotated[str, _NEWEST] = ""
    rollbacks: Annotated[int, _ENDLESS] = 0
    back_from: Annotated[int, _ENDLESS] = 0
    times_back: Annotated[int, _ENDLESS] = 0
    asked_total: Annotated[int, _NEWEST] = 0
    unanswered: Annotated[int, _NEWEST] = 0
    fallback: Annotated[str, _NEWEST] = ""
    device: Annotated[str, OF_THE_TRAINER] = ""


class HasStrategy(Protocol):
    """A state with this slice."""

    @property
    def strategy(self) -> Strategy:
        """Return the strategy's questions, answers and state."""


def _asked(s: Strategy, e: m.StrategyAsked, at: m.Cause) -> Strategy:
    return replace(s, asked=Asked(at, e.epoch, e.mono), asked_total=s.asked_total + 1, owed=0)


def _answered(s: Strategy, e: m.StrategyAnswered, _: m.Cause) -> Strategy:
    commands = e.commands[: m.COMMANDS_MAX]
    return replace(s, asked=None, commands=commands, fallback="", answered_epoch=storable(e.epoch))


def _timed_out(s: Strategy, e: m.StrategyTimedOut, _: m.Cause) -> Strategy:
    if e.reason is m.NoAnswer.OVERTAKEN:
        return s
    return replace(s, asked=None, commands=(), unanswered=s.unanswered + 1, fallback=e.fallback)


def _trainer_gone(s: Strategy, _: m.TrainerDied | m.TrainerEnded, __: m.Cause) -> Strategy:
    return s if s.asked is None else replace(s, asked=None, owed=s.asked.epoch)


def _branch_left(s: Strategy, _: m.RollbackBegun, __: m.Cause) -> Strategy:
    return s if s.asked is None and not s.owed else replace(s, asked=None, owed=0)


def _built(s: Strategy, e: m.ExecutionContextRecorded, _: m.Cause) -> Strategy:
    return replace(s, device=e.environment.device)


def _kept(s: Strategy, order: m.KeepStrategyState, _: m.OrderActed) -> Strategy:
    return replace(s, kept=order.state[: m.STATE_BYTES_MAX])


def _voted(s: Strategy, e: m.StrategyVoted, _: m.Cause) -> Strategy:
    return replace(s, voted_rollback=e.rollback, voted_checkpoint=e.checkpoint)


def _rollback(s: Strategy, e: m.RollbackRequested, _: m.Cause) -> Strategy:
    if e.actor is None or e.actor.program != PROGRAM:
        return s
    step = storable(e.step + (e.given_up or 0))
    is_new = step > s.back_from or not s.times_back
    times = 1 if is_new else s.times_back + 1
    return replace(s, rollbacks=s.rollbacks + 1, back_from=max(step, s.back_from), times_back=times)


def _began(s: Strategy, _: m.EpochStarted, __: m.Cause) -> Strategy:
    return replace(s, skipped=0, findings=0, owed=0) if s.skipped or s.findings or s.owed else s


def _ended(s: Strategy, e: m.EpochFinished, _: m.Cause) -> Strategy:
    return replace(s, ended_steps=storable(e.steps), ended_skipped=s.skipped, ended_findings=s.findings)


def _skipped(s: Strategy, _: m.StepSkipped, __: m.Cause) -> Strategy:
    return replace(s, skipped=s.skipped + 1)


def _found(s: Strategy, e: m.InstabilityDetected, _: m.Cause) -> Strategy:
    """Count a finding that called for more than a record. One of a finite rise is insured, and has no level."""
    if e.level is None and not e.insured and not e.goes_on:
        return s
    return replace(s, findings=s.findings + 1)


APPLY: Final[ApplyTable] = {
    m.StrategyAsked: _asked,
    m.StrategyAnswered: _answered,
    m.StrategyTimedOut: _timed_out,
    m.OrderActed: by_order({m.KeepStrategyState: _kept}),
    m.StrategyVoted: _voted,
    **dict.fromkeys((m.TrainerDied, m.TrainerEnded), _trainer_gone),
    m.RollbackBegun: _branch_left,
    m.ExecutionContextRecorded: _built,
    m.RollbackRequested: _rollback,
    m.EpochStarted: _began,
    m.EpochFinished: _ended,
    m.StepSkipped: _skipped,
    m.InstabilityDetected: _found,
}
