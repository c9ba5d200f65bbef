"""An operator's orders: as they come in (imperative), as they are recorded (past), as the trainer gets them.

It must not know: sockets, users' names, exit codes.
"""

from __future__ import annotations

from typing import ClassVar

from tolariad.core.base import Effect, Event, Message, Step
from tolariad.core.bounds import CallerId, Sentence
from tolariad.core.run.words import Origin, StopMode


class Command(Message, frozen=True, kw_only=True):
    """`id` is the caller's own: a repeat of it gets the first answer. `reason` goes into the actor of the event."""

    id: CallerId = ""
    reason: Sentence = ""


class Pause(Command, frozen=True, kw_only=True):
    """Stand still at the next step boundary."""


class Resume(Command, frozen=True, kw_only=True):
    """Go on after a pause, a freeze or a stop; after a gap in the journal only with `after_gap`."""

    after_gap: bool = False


class Stop(Command, frozen=True, kw_only=True):
    """End the run's process; it can be started again."""

    mode: StopMode = StopMode.GRACEFUL


class Checkpoint(Command, frozen=True, kw_only=True):
    """Write a checkpoint at the next boundary."""


class Note(Command, frozen=True, kw_only=True):
    """Write a sentence into the journal."""

    text: Sentence


class PauseRequested(Event, frozen=True, kw_only=True):
    """A pause was ordered; it ends in RunPaused, or is withdrawn by ResumeRequested."""

    EMITTED_BY: ClassVar[str] = "control"

    id: str = ""


class ResumeRequested(Event, frozen=True, kw_only=True):
    """Going on was ordered; `after_gap` accepts that events are missing."""

    EMITTED_BY: ClassVar[str] = "control"

    id: str = ""
    after_gap: bool = False


class StopRequested(Event, frozen=True, kw_only=True):
    """A stop was ordered, by a command or by a signal to the daemon."""

    EMITTED_BY: ClassVar[str] = "control"

    mode: StopMode
    origin: Origin
    id: str = ""


class CheckpointRequested(Event, frozen=True, kw_only=True):
    """A checkpoint was ordered; CheckpointBegun follows."""

    EMITTED_BY: ClassVar[str] = "control"

    id: str = ""


class NoteAdded(Event, frozen=True, kw_only=True):
    """A sentence for those who read the journal later."""

    EMITTED_BY: ClassVar[str] = "control"

    text: str
    id: str = ""


class CommandRefused(Event, frozen=True, kw_only=True):
    """A command that carried an id was refused; a repeat gets the same answer."""

    EMITTED_BY: ClassVar[str] = "control"

    command: str
    id: str
    error: str
    why: str


class TelemetryDropped(Event, frozen=True, kw_only=True):
    """How many telemetry messages were dropped since the last such event, by priority. Never changes the state."""

    EMITTED_BY: ClassVar[str] = "telemetry"

    dropped: dict[str, int]


class ReportRefused(Event, frozen=True, kw_only=True):
    """A report contradicts the journal (a step out of order, say): the trainer that sent it is ended."""

    incarnation: int
    why: str


class Hold(Effect, frozen=True, kw_only=True):
    """To the trainer: stand still at the next boundary and say so (HeldReport)."""


class Release(Effect, frozen=True, kw_only=True):
    """To the trainer: a Hold is over."""


class HeldReport(Message, frozen=True, kw_only=True):
    """The trainer stands at the boundary of `step`; `rerunning` where that step is being run again."""

    step: Step
    rerunning: bool = False


EVENTS = (
    PauseRequested,
    ResumeRequested,
    StopRequested,
    CheckpointRequested,
    NoteAdded,
    CommandRefused,
    TelemetryDropped,
    ReportRefused,
)
