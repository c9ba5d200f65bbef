"""The strategy: questions and answers at the ends of epochs, its commands, its state, its vote in a rollback.

A question is StrategyAsked, then exactly one of StrategyAnswered and StrategyTimedOut. Each command of an answer is
StrategyCommanded, and then the event of the order that it leads to, or CommandRefused.
"""

import enum
from typing import Annotated, Final, TypeAlias

import msgspec

from tolariad.core.calc.bounds import unit
from tolariad.core.calc.health.breaker import BreakerState
from tolariad.core.calc.seeds.stages import Stage
from tolariad.core.calc.units import CallerId, Epoch, Name, Nanoseconds, Seconds, Sentence
from tolariad.core.messages.base import DaemonEffect, Event
from tolariad.core.messages.boundary import (
    BoundaryAsked,
    BoundaryClosed,
    BoundaryOrder,
)
from tolariad.core.messages.control import Command, Pause
from tolariad.core.messages.health import RaiseEmergency
from tolariad.core.messages.rates_hyper import AdjustOptimizer
from tolariad.core.messages.rollback import Rollback

# Of an answer, and of a strategy's state.
COMMANDS_MAX: Final = 16
STATE_BYTES_MAX: Final = 32 * 1024
# `strategy` of Policy: nobody is asked; the default policy is asked if the run has slots for seeds.
NONE: Final = "none"
AUTO: Final = "auto"

StateBytes = Annotated[bytes, unit("", 0, STATE_BYTES_MAX)]


class SetBreaker(Command, frozen=True, kw_only=True):
    """Open or close a breaker. An open one is a reason for conservative mode, and becomes half-open by itself."""

    breaker: Name
    state: BreakerState


class AdaptSeed(Command, frozen=True, kw_only=True):
    """Move the seed in `slot` to `stage`. `blueprint` and its `parameters` are for GERMINATED."""

    slot: Name
    stage: Stage
    blueprint: Name = ""
    parameters: dict[str, float] = msgspec.field(default_factory=dict)


# The orders that a command can lead to.
Adaptation: TypeAlias = AdaptSeed | AdjustOptimizer | SetBreaker | Rollback | RaiseEmergency | Pause


class StrategyCommand(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One command of an answer. `kind`: its type in Leyline. `expires`: after this wall time it is void; 0: never.

    `refused`: why it leads to no order, whatever the state of the run; `order` is None then.
    """

    kind: str
    id: CallerId = ""
    order: Adaptation | None = None
    expires: Nanoseconds = 0
    refused: Sentence = ""


class StrategyWaits(msgspec.Struct, frozen=True, kw_only=True):
    """For how much of each part of a question nothing of it ran: it waited for a processor."""

    assembly: Seconds = 0.0
    encoding: Seconds = 0.0
    answer: Seconds = 0.0
    check: Seconds = 0.0


class StrategySpans(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How long the daemon's parts of a question took, by the clock.

    `assembly`: to make the packet. `encoding`: to make its bytes. `answer`: the strategy. `check`: to check its
    commands. `waits`: the parts of these times that count for no budget; absent if they were not measured.
    """

    assembly: Seconds = 0.0
    encoding: Seconds = 0.0
    answer: Seconds = 0.0
    check: Seconds = 0.0
    waits: StrategyWaits | None = None


class NoAnswer(enum.Enum):
    """Why a question has no answer.

    LATE: not in time. FAILED: the strategy raised, died, or sent what is no answer. OVERTAKEN: a rollback began, or the
    trainer ended, so nobody waits for it any more.
    """

    LATE = "late"
    FAILED = "failed"
    OVERTAKEN = "overtaken"


class StrategyAsked(BoundaryAsked, frozen=True, kw_only=True):
    """The strategy is asked after `epoch`. No update begins before StrategyAnswered or StrategyTimedOut."""


class StrategyAnswered(BoundaryClosed, frozen=True, kw_only=True):
    """The strategy answered in time. Its commands follow, one by one; a rollback among them comes first.

    `repeated`: the ids of commands that came before and are done already, which are left out of `commands`.
    `misread`: how many commands were of another version of the contract.
    """

    epoch: Epoch
    commands: tuple[StrategyCommand, ...] = ()
    repeated: tuple[CallerId, ...] = ()
    spans: StrategySpans = StrategySpans()
    packet_bytes: int = 0
    misread: int = 0


class StrategyTimedOut(BoundaryClosed, frozen=True, kw_only=True):
    """The question has no answer, and nothing is changed. `fallback`: why.

    Unless it was OVERTAKEN, this is a failure of the breaker `strategy_deadline`.
    """

    epoch: Epoch
    reason: NoAnswer
    fallback: str
    spans: StrategySpans = StrategySpans()
    misread: int = 0


class StrategyAnswerVoided(Event, frozen=True, kw_only=True):
    """An answer came after its question was closed. It is void: `commands` commands have no effect."""

    generation: int
    commands: int
    seconds: Seconds


class StrategyCommanded(Event, frozen=True, kw_only=True):
    """Command `number` of the newest answer, counted from 1, is obeyed or refused now. `kind`: its type in Leyline."""

    number: int
    kind: str
    id: CallerId = ""


class KeepStrategyState(BoundaryOrder, frozen=True, kw_only=True):
    """To the trainer: hold this state of the strategy from the end of `epoch` on. Refused at any other place."""

    epoch: Epoch
    state: StateBytes


class BreakerSet(Event, frozen=True, kw_only=True):
    """A breaker was opened or closed by an order."""

    breaker: str
    state: BreakerState
    id: CallerId = ""


class Vote(enum.Enum):
    """The strategy's vote in a rollback. It abstains if it does not answer in its share of the time."""

    AGREED = "agreed"
    REFUSED = "refused"
    ABSTAINED = "abstained"


class StrategyVoted(Event, frozen=True, kw_only=True):
    """The strategy voted on the rollback to `checkpoint`. If it refused, an older target is tried.

    The properties are those of a RollbackRefusedReport: a refusal has the same consequences.
    """

    rollback: str
    checkpoint: str
    vote: Vote
    why: str = ""
    seconds: Seconds = 0.0

    @property
    def participant(self) -> str:
        """The target is intact, but this participant cannot go back to it."""
        return "strategy"

    @property
    def file(self) -> str:
        """The part that refused, in words."""
        return "participant strategy"

    @property
    def restored(self) -> bool:
        """The vote comes before anything is overwritten."""
        return False


class AskStrategy(DaemonEffect, frozen=True, kw_only=True):
    """To the daemon: ask the strategy for its commands after `epoch`. `state`: the one that it must begin with."""

    epoch: Epoch
    generation: int
    state: StateBytes
    limit_s: Seconds


class AskVote(DaemonEffect, frozen=True, kw_only=True):
    """To the daemon: ask the strategy whether it can go back to `state`, within `limit_s`."""

    rollback: str
    checkpoint: str
    state: StateBytes
    limit_s: Seconds
