"""An operator's orders: slice, apply table.

Invariants: an order is an event before it is acknowledged; a repeated id gets the first answer and changes nothing; what
is refused changes nothing, and is recorded only where the caller gave an id. It must not know: sockets, permissions.
"""

from __future__ import annotations

from typing import Final, Protocol

import msgspec
from msgspec.structs import replace

from tolariad.core.base import ApplyTable, Cause
from tolariad.core.control import words as control
from tolariad.core.health import emergency_words as emergency
from tolariad.core.health import quarantine_words as quarantine
from tolariad.core.rates import words as lr
from tolariad.core.rollback import words as rollback
from tolariad.core.vocabulary import Event

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


_Order = (
    control.PauseRequested
    | control.ResumeRequested
    | control.StopRequested
    | control.CheckpointRequested
    | control.NoteAdded
    | lr.RateOrdered
    | rollback.RollbackRequested
    | emergency.EmergencyRaised
    | quarantine.QuarantineAdded
    | quarantine.QuarantineRemoved
)


# By what each is recorded: whether an id is repeated, or given to an order of another kind, shows by that.
_COMMAND: Final[dict[type[Event], type[control.Command]]] = {
    control.PauseRequested: control.Pause,
    control.ResumeRequested: control.Resume,
    control.StopRequested: control.Stop,
    control.CheckpointRequested: control.Checkpoint,
    control.NoteAdded: control.Note,
    lr.RateOrdered: lr.LrSet,
    rollback.RollbackRequested: rollback.Rollback,
    emergency.EmergencyRaised: emergency.RaiseEmergency,
    quarantine.QuarantineAdded: quarantine.QuarantineAdd,
    quarantine.QuarantineRemoved: quarantine.QuarantineRemove,
}


def _remember(s: Control, outcome: Outcome) -> tuple[Outcome, ...]:
    return (*s.outcomes, outcome)[-OUTCOMES_MAX:] if outcome.id else s.outcomes


def _accepted(s: Control, e: _Order, at: Cause) -> Control:
    return replace(
        s, outcomes=_remember(s, Outcome(e.id, at.seq, command=_COMMAND[type(e)].__name__)), accepted=s.accepted + 1
    )


def _perhaps(s: Control, e: _Order, at: Cause) -> Control:
    """An order only where somebody gave it: the run does the same on its own account."""
    return s if e.actor is None else _accepted(s, e, at)


def _refused(s: Control, e: control.CommandRefused, at: Cause) -> Control:
    return replace(s, outcomes=_remember(s, Outcome(e.id, at.seq, e.error, e.why, e.command)))


APPLY: Final[ApplyTable] = {
    control.PauseRequested: _accepted,
    control.ResumeRequested: _accepted,
    control.StopRequested: _accepted,
    control.CheckpointRequested: _accepted,
    control.NoteAdded: _accepted,
    lr.RateOrdered: _accepted,
    rollback.RollbackRequested: _accepted,
    emergency.EmergencyRaised: _perhaps,
    quarantine.QuarantineAdded: _perhaps,
    quarantine.QuarantineRemoved: _accepted,
    control.CommandRefused: _refused,
}
