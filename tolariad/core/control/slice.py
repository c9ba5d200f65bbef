"""An operator's orders: slice, apply table.

Invariants: an order is an event before it is acknowledged; a repeated id gets the first answer and changes nothing; what
is refused changes nothing, and is recorded only where the caller gave an id. It must not know: sockets, permissions.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

import msgspec
from msgspec.structs import replace

from tolariad.core.base import ApplyTable, Cause
from tolariad.core.control import words as control
from tolariad.core.vocabulary import EVENT_TYPES

OUTCOMES_MAX: Final = 1000


class Outcome(msgspec.Struct, frozen=True):
    """The answer that the command with this id got: a sequence number, or an error and why.

    `command` is the name of its kind; "" in what an older version remembered.
    """

    id: str
    seq: int
    error: str = ""
    why: str = ""
    command: str = ""


class Control(msgspec.Struct, frozen=True):
    """Slice of RunState: outcomes by id, oldest first, and how many orders were accepted."""

    outcomes: tuple[Outcome, ...] = ()
    accepted: int = 0

    def outcome(self, id_: str) -> Outcome | None:
        """The outcome of the command `id_`, while it is remembered."""
        return next((one for one in reversed(self.outcomes) if one.id == id_), None) if id_ else None


class HasControl(Protocol):
    """A state with this slice."""

    @property
    def control(self) -> Control:
        """Return the answers that are remembered."""


# The events that accept an order, each of which names its order: an id that is repeated, or given to an order of another
# kind, is known by that.
ACCEPTING: Final = tuple(kind for kind in EVENT_TYPES.values() if kind.ORDER)


def _remember(s: Control, outcome: Outcome) -> tuple[Outcome, ...]:
    return (*s.outcomes, outcome)[-OUTCOMES_MAX:] if outcome.id else s.outcomes


def _accepted(s: Control, e: Any, at: Cause) -> Control:
    """Remember the answer. Without an actor and an id it was no order: the run does some of this on its own account."""
    if e.actor is None and not e.id:
        return s
    return replace(s, outcomes=_remember(s, Outcome(e.id, at.seq, command=e.ORDER)), accepted=s.accepted + 1)


def _refused(s: Control, e: control.CommandRefused, at: Cause) -> Control:
    return replace(s, outcomes=_remember(s, Outcome(e.id, at.seq, e.error, e.why, e.command)))


APPLY: Final[ApplyTable] = {**dict.fromkeys(ACCEPTING, _accepted), control.CommandRefused: _refused}
