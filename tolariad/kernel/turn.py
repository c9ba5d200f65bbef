"""One turn of the kernel: what it collects, how it becomes durable, and what it publishes then."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import msgspec

from journal import Journal, JournalFull
from tolariad.core import messages as m
from tolariad.core.calc.units import Seq
from tolariad.core.decision import Answer
from tolariad.core.engine import Decided
from tolariad.core.messages.vocabulary import encode_event
from tolariad.core.rules.table.decide import decide
from tolariad.core.state.run_state import RunState

# The largest event, and the bytes after which a turn takes no further input: together they fit into one frame.
EVENT_BYTES_MAX: Final = 16 << 20
TURN_BYTES_MAX: Final = 16 << 20

# Between two attempts on a full disk: short enough to continue at once after space was freed, long enough to cost
# nothing.
_PAUSE_S: Final = 0.2

log = logging.getLogger("tolariad.kernel")

AnswerTo = Callable[[Answer], None]


class Published(msgspec.Struct, frozen=True):
    """One durable turn. The kernel's thread passes it to a callback, which must hand it over and return quickly.

    * `failure`: the reason why nothing can be recorded any more, or None.
    * `write_ns`: the duration of the write of the frame; 0 if there was none.
    """

    state: RunState
    events: tuple[tuple[Seq, m.Event], ...]
    effects: tuple[m.DaemonEffect, ...]
    failure: str | None
    write_ns: int = 0


def refuse_late(inputs: deque[tuple[m.Input, AnswerTo | None] | Callable[[], None]], state: RunState) -> None:
    """Refuse orders that came too late for the last turn: whoever gave one would wait for ever."""
    why = "the run has ended in this process, so nothing is recorded any more"
    while inputs:
        with suppress(IndexError):  # another thread takes them, too
            item = inputs.popleft()
            if not callable(item) and item[1] is not None:
                item[1](m.Refusal("WrongPhase", why, state.run.phase.value))


class Unrecordable(Exception):
    """An event cannot be recorded: a number or a text cannot be encoded, or it is too large."""


def refused_instead(state: RunState, given: m.Input, why: str, now: m.Now) -> Decided[RunState] | None:
    """Return what follows from an input whose decision cannot be recorded; None if the input cannot be refused."""
    match given:
        case m.CommandReceived() | m.Reconfigured():
            return Decided(state, answer=m.Refusal(error="Refused", why=why, phase=state.run.phase.value))
        case m.ReportReceived(incarnation=incarnation):
            return decide(state, m.ReportUnusable(incarnation=incarnation, why=why), now)
        case _:
            # A trainer's start or death, or a signal, has happened already. Refusing the input would not undo it.
            return None


class Turn:
    """Everything that one turn collects before its frame is written.

    `now` is the reading of the clock; `began_mono` that of the first turn whose steps were held back in this one.
    """

    def __init__(self, now: m.Now) -> None:
        self.now = now
        self.began_mono = now.mono
        # A turn of steps alone leaves the gate as it is and may be held back for a moment.
        self.only_steps = True
        # The last trainer's environment in this turn: the kernel asks for cores after it is durable.
        self.context: m.ExecutionContextRecorded | None = None
        self.events: list[tuple[Seq, m.Event]] = []
        self.raw: list[bytes] = []
        self.raw_bytes = 0
        self.effects: list[m.Effect] = []
        self.answers: list[tuple[AnswerTo, Answer]] = []
        self.write_ns = 0

    def decide(self, head: RunState, given: m.Input, answer: AnswerTo | None) -> RunState:
        """Decide on one input, add what follows, and return the state after it.

        If the decision cannot be recorded, only this input is refused. Raises Unrecordable if it cannot be refused.
        """
        # Every input of a turn is decided with the same reading of the clock, so the events of one frame agree on the
        # time.
        decided = decide(head, given, self.now)
        try:
            self.add(decided, answer)
        except Unrecordable as error:
            instead = refused_instead(head, given, str(error), self.now)
            if instead is None:
                raise
            log.warning("%s", error)
            self.add(decided := instead, answer)
        return decided.state

    def add(self, decided: Decided[RunState], answer: AnswerTo | None) -> None:
        """Encode the events, keep effects and answer for after the commit.

        All of a decision is added or, if this raises Unrecordable, nothing of it.
        """
        # Encode first: if one event cannot be encoded, the turn is unchanged and the input can still be refused.
        raw = [_encoded(event) for event in decided.events]
        for seq, event in enumerate(decided.events, decided.state.seq - len(raw) + 1):
            if type(event) is not m.StepCompleted:
                self.only_steps = False
                if type(event) is m.ExecutionContextRecorded:
                    self.context = event
            self.events.append((seq, event))
        self.raw += raw
        self.raw_bytes += sum(map(len, raw))
        # Effects and answers only wait here. They leave after the frame is durable (`recorder._publish`).
        self.effects.extend(decided.effects)
        if answer is not None and decided.answer is not None:
            self.answers.append((answer, decided.answer))

    def commit(self, journal: Journal, head: RunState, waits: Callable[[], None]) -> None:
        """Make the events durable in one frame, however long that takes. Raises JournalError if they never can be.

        On a full disk the turn calls `waits`, and waits for space as it would wait for a slow disk. This is the last
        resort: long before it, `core.rules.run` pauses the run, because free space fell below its floor.
        """
        epoch, step, began_ns, is_logged = head.progress.epoch, head.progress.step, time.monotonic_ns(), False
        while True:
            try:
                journal.commit(self.raw, epoch=epoch, step=step, wall_ns=self.now.wall, mono_ns=self.now.mono)
            except JournalFull as error:
                # JournalFull leaves the journal as it was before the call, so the same batch is tried again.
                # Log once: the condition may last for hours, and the log lies on a disk too.
                if not is_logged:
                    log.critical("The journal's disk is full (%s). The run waits until there is space.", error)
                    waits()
                is_logged = True
                # Sleeping in the kernel's thread is right here. No order may be acknowledged and no step may count
                # before this frame is durable, so the thread has nothing else to do.
                time.sleep(_PAUSE_S)
            else:
                self.write_ns = time.monotonic_ns() - began_ns
                return

    @property
    def is_full(self) -> bool:
        """Whether further inputs wait for the next turn: a frame of the journal is bounded."""
        return self.raw_bytes > TURN_BYTES_MAX

    @property
    def published(self) -> tuple[m.DaemonEffect, ...]:
        """Return the effects that the daemon's loop carries out."""
        # Nearly every turn is one of steps, which has no effects: it makes no new tuple.
        return tuple(one for one in self.effects if isinstance(one, m.DaemonEffect)) if self.effects else ()


def _encoded(event: m.Event) -> bytes:
    try:
        raw = encode_event(event)
    except (OverflowError, UnicodeEncodeError) as error:
        raise Unrecordable(f"{type(event).__name__} cannot be recorded: {error}") from error
    # The journal would refuse the whole batch, and with it the events of other inputs. Refuse the one input instead.
    if len(raw) > EVENT_BYTES_MAX:
        name = type(event).__name__
        why = f"{name} cannot be recorded: it has {len(raw)} bytes, and an event has at most {EVENT_BYTES_MAX}"
        raise Unrecordable(why)
    return raw
