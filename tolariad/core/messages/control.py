"""An operator's orders: the commands, the events that record them, and the messages to the trainer.

docs/contributing.md shows how to add one.
"""

from typing import ClassVar

from tolariad.core.calc.units import CallerId, Epoch, Sentence, Step
from tolariad.core.messages.base import Event, Message, Report, TrainerEffect
from tolariad.core.messages.run import Origin, StopMode


class Command(Message, frozen=True, kw_only=True):
    """Base of all orders. `id` is the caller's own: a repeat gets the first answer.

    `reason` is recorded with the actor.
    """

    # The method of the control interface, if it is not the Struct's name. Its parameters are the Struct's fields, and
    # its description is the Struct's docstring.
    METHOD: ClassVar[str] = ""
    # At most one of these fields may be given.
    ONE_OF: ClassVar[tuple[str, ...]] = ()

    id: CallerId = ""
    reason: Sentence = ""


class Pause(Command, frozen=True, kw_only=True):
    """Pause at the next step boundary."""


class Resume(Command, frozen=True, kw_only=True):
    """Continue after a pause, a freeze or a stop; after a gap in the journal only with `after_gap`."""

    after_gap: bool = False


class Stop(Command, frozen=True, kw_only=True):
    """End the run's process; it can be started again. Without a mode: with a checkpoint at the next step boundary."""

    mode: StopMode = StopMode.GRACEFUL


class Checkpoint(Command, frozen=True, kw_only=True):
    """Write a checkpoint at the next step boundary."""


class Note(Command, frozen=True, kw_only=True):
    """Write a sentence into the journal."""

    text: Sentence


class Extend(Command, frozen=True, kw_only=True):
    """End the training after epoch `epochs`, or after step `steps`, later or earlier than configured.

    Both are counted from the beginning of the run; exactly one is given. It replaces `epochs`, `stop.epochs` and
    `stop.steps` of the configuration, also after a restart. Learning rates stay as they were computed.
    """

    ONE_OF: ClassVar[tuple[str, ...]] = ("epochs", "steps")

    epochs: Epoch | None = None
    steps: Step | None = None


class PauseRequested(Event, frozen=True, kw_only=True):
    """A pause was ordered. RunPaused follows, or ResumeRequested withdraws it."""

    ORDER: ClassVar[str] = "Pause"

    id: str = ""


class ResumeRequested(Event, frozen=True, kw_only=True):
    """A resume was ordered. `after_gap` accepts that events are missing."""

    ORDER: ClassVar[str] = "Resume"

    id: str = ""
    after_gap: bool = False


class StopRequested(Event, frozen=True, kw_only=True):
    """A stop was ordered, by a command or by a signal to the daemon.

    `signal`: the name of the first signal that ordered it. A signal that only hastens an ordered stop is not named: the
    origin stays the command, so a start completes that stop.
    """

    ORDER: ClassVar[str] = "Stop"

    mode: StopMode
    origin: Origin
    id: str = ""
    signal: str = ""


class CheckpointRequested(Event, frozen=True, kw_only=True):
    """A checkpoint was ordered. CheckpointBegun follows."""

    ORDER: ClassVar[str] = "Checkpoint"

    id: str = ""


class NoteAdded(Event, frozen=True, kw_only=True):
    """An operator wrote a note for later readers of the journal."""

    ORDER: ClassVar[str] = "Note"

    text: str
    id: str = ""


class EndOrdered(Event, frozen=True, kw_only=True):
    """An operator ordered another end: after epoch `epochs`, or at the first boundary at or after step `steps`.

    It replaces the configured end. `former_epochs` or `former_steps`: the end until then. `rates`: what the learning
    rates will do, in words.
    """

    ORDER: ClassVar[str] = "Extend"

    epochs: Epoch | None = None
    steps: Step | None = None
    former_epochs: Epoch | None = None
    former_steps: Step | None = None
    rates: str = ""
    id: str = ""


class CommandRefused(Event, frozen=True, kw_only=True):
    """A command with an id was refused. A repeat gets the same answer."""

    command: str
    id: str
    error: str
    why: str


class TelemetryDropped(Event, frozen=True, kw_only=True):
    """Telemetry messages were dropped since the last such event; counts by priority. Never changes the state."""

    dropped: dict[str, int]


class ReportRefused(Event, frozen=True, kw_only=True):
    """A report contradicts the journal, for example a step out of order. The trainer that sent it is ended."""

    incarnation: int
    why: str


class Hold(TrainerEffect, frozen=True, kw_only=True):
    """To the trainer: stop at the next boundary and report it (HeldReport)."""


class Release(TrainerEffect, frozen=True, kw_only=True):
    """To the trainer: continue after a Hold."""


class SetEnd(TrainerEffect, frozen=True, kw_only=True):
    """To the trainer: end after epoch `epochs`, or at the first boundary at or after `last_step`, if there is one."""

    epochs: Epoch
    last_step: Step | None = None


class HeldReport(Report, frozen=True, kw_only=True):
    """The trainer waits at the boundary of `step`. `rerunning`: whether that step is being run again."""

    step: Step
    rerunning: bool = False
