"""An operator's orders: slice, apply table.

Invariants: an order is an event before it is acknowledged. A repeated id gets the first answer and changes nothing. A
refused order changes nothing, and is recorded only if the caller gave an id.
"""

from typing import Any, ClassVar, Final, Protocol

import msgspec
from msgspec.structs import replace

from tolariad.core import messages as m
from tolariad.core.messages.vocabulary import EVENT_TYPES
from tolariad.core.state.fold import ApplyTable

OUTCOMES_MAX: Final = 1000


class Outcome(msgspec.Struct, frozen=True):
    """The answer to the command with this id: a sequence number, or an error with its reason.

    `command` is the type of the command; "" if an older version recorded it.
    """

    id: str
    seq: int
    error: str = ""
    why: str = ""
    command: str = ""


class Control(msgspec.Struct, frozen=True):
    """Slice of RunState: outcomes by id, oldest first, and how many orders were accepted."""

    SURVIVES: ClassVar[str] = "a repeated order must find its first answer"

    outcomes: tuple[Outcome, ...] = ()
    accepted: int = 0

    def outcome(self, id_: str) -> Outcome | None:
        """Return the outcome of the command `id_` as long as it is remembered, or None."""
        return next((one for one in reversed(self.outcomes) if one.id == id_), None) if id_ else None


class HasControl(Protocol):
    """A state with this slice."""

    @property
    def control(self) -> Control:
        """Return the remembered answers."""


# The events that accept an order. Each names its order, so that an id that is repeated, or used for another kind of
# order, is recognised.
ACCEPTING: Final = tuple(kind for kind in EVENT_TYPES.values() if kind.accepts())


def _remember(s: Control, outcome: Outcome) -> tuple[Outcome, ...]:
    return (*s.outcomes, outcome)[-OUTCOMES_MAX:] if outcome.id else s.outcomes


def _accepted(s: Control, e: Any, at: m.Cause) -> Control:
    """Remember the answer. Without an actor and an id the event was not an order but the run's own action."""
    if e.actor is None and not e.id:
        return s
    return replace(s, outcomes=_remember(s, Outcome(e.id, at.seq, command=e.accepted)), accepted=s.accepted + 1)


def _refused(s: Control, e: m.CommandRefused, at: m.Cause) -> Control:
    return replace(s, outcomes=_remember(s, Outcome(e.id, at.seq, e.error, e.why, e.command)))


APPLY: Final[ApplyTable] = {
    # The last one accepts a command of the strategy, which operators cannot give.
    **dict.fromkeys((*ACCEPTING, m.BreakerSet), _accepted),
    m.CommandRefused: _refused,
}
