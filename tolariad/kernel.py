"""The recorder: one thread, one turn: drain inputs, decide, apply, commit one frame, publish.

Invariants, each kept in the function named beside it:

1. Nothing is acted on, answered or shown before it is durable: `decide` sees `head`, which includes this turn's events;
   answers, effects, streams and the page follow `durable`, which becomes `head` when the frame is on disk; if the frame can
   never be written, `head` falls back to `durable` (`_commit`).
2. `apply` never refuses; refusing is `decide`'s (core.state, core.decide).
3. Replay runs `apply` only, and `pending(state)` after it is the recovery work list (core.replay, core.decide `Opened`).
4. Edges come in threes (begun, then committed or aborted); levels, such as whether the gate is open, are read from the
   durable state again after every turn (`_publish`).
5. Clock, randomness and ids enter as fields of inputs; one `Now` is read a turn (`_turn`).
6. Every event carries its cause, the root of its chain and, where someone ordered it, the actor (`_record`).

It must not know: asyncio, sockets of clients, processes, torch. A report of another incarnation never reaches `decide`
(channel.Reports); everything a dead trainer had sent is taken before its death is (`_turn`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec

from journal import FrameKind, Journal, JournalError, Reader, Recovery
from tolariad.channel import ChannelError, DaemonEnd, Reports
from tolariad.core.decide import decide
from tolariad.core.decision import Answer, Decision, Refusal, stamped
from tolariad.core.inputs import Input, Now, ReportReceived, SignalReceived, TrainerGone, TrainerSpawned
from tolariad.core.rerun import cut_script
from tolariad.core.run import gate_open
from tolariad.core.state import RunState, apply, capture, hash_mark
from tolariad.core.steps import may_wait, refuse_report
from tolariad.core.vocabulary import DaemonEffect, Effect, Event, decode_event, encode_event
from tolariad.core.vocabulary.base import Seq
from tolariad.core.vocabulary.checkpoints import Script, TrainFrom
from tolariad.core.vocabulary.run import ExitDaemon
from tolariad.core.vocabulary.steps import StepCompleted
from tolariad.core.vocabulary.trainer import KillTrainer, SpawnTrainer

STATE_HASH_EVENTS: Final = 10_000
REPORTS_A_TURN: Final = 1024
INPUTS_A_TURN: Final = 64
# `journal.sync: batch` and `auto`: how long step reports are held back, and how old an undurable one may get before the
# trainer waits for it. Between the two lies the time of a write.
HOLD_NS: Final = 40_000_000
LAG_NS: Final = 50_000_000
HELD_EVENTS_MAX: Final = 1024
_POLL_MS: Final = 1000
_POLL_SOON_MS: Final = 5
_FLOW_NS: Final = 1_000_000_000
_EXIT_IO: Final = 74
_DAEMON_EFFECTS: Final = (SpawnTrainer, KillTrainer, ExitDaemon)

log = logging.getLogger("tolariad.kernel")
AnswerTo = Callable[[Answer], None]


class Published(msgspec.Struct, frozen=True):
    """One durable turn, as the loop learns of it (in the kernel's thread: hand it over, do nothing long)."""

    state: RunState
    events: tuple[tuple[Seq, Event], ...]
    effects: tuple[DaemonEffect, ...]
    failure: str | None


class _Turn:
    """What one turn gathers before its frame is written."""

    def __init__(self, now: Now) -> None:
        self.now = now
        self.began_mono = now.mono
        self.only_steps = True
        self.events: list[tuple[Seq, Event]] = []
        self.raw: list[bytes] = []
        self.effects: list[Effect] = []
        self.answers: list[tuple[AnswerTo, Answer]] = []


class Kernel:
    """Owns the journal and the state of one run. Every method may be called from any thread, unless it says otherwise."""

    def __init__(
        self, journal: Journal, state: RunState, *, clock: Callable[[], Now], publish: Callable[[Published], None]
    ) -> None:
        self._journal = journal
        self._head = state
        self._durable = state
        self._clock = clock
        self._publish_to = publish
        self._inputs: deque[tuple[Input, AnswerTo | None] | Callable[[], None]] = deque()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._wake, select.POLLIN)
        self._reports: Reports | None = None
        self._end: DaemonEnd | None = None
        self._arriving: dict[int, DaemonEnd] = {}
        self._held: _Turn | None = None
        self._hashed = state.seq // STATE_HASH_EVENTS
        self._running = True
        self._failure: str | None = None
        self._write_started_ns = 0
        self._thread = threading.Thread(target=self._run, name="tolaria-kernel", daemon=True)

    # -- from other threads --------------------------------------------------------------------------------------------

    @property
    def durable(self) -> RunState:
        """The state after the last event on disk; a frozen value."""
        return self._durable

    @property
    def failure(self) -> str | None:
        """Why nothing can be recorded any more; None while all is well."""
        return self._failure

    @property
    def write_started_ns(self) -> int:
        """Monotonic time at which the write in flight was begun; 0 while none is."""
        return self._write_started_ns

    def begin(self, run_id: bytes, context_hash: bytes, boot_id: bytes) -> Recovery:
        """Open the scanned and folded journal for writing; before `start`. Raises JournalError."""
        return self._journal.begin(
            run_id=run_id,
            context_hash=context_hash,
            # At a rotation the journal asks for the state before the batch that it is about to write.
            capture=lambda: capture(self._durable),
            wall_ns=self._clock().wall,
            boot_id=boot_id,
        )

    def start(self) -> None:
        """Begin to take turns."""
        self._thread.start()

    def stop(self) -> None:
        """Take the turns that are due, then end the thread. The journal stays open for its owner to close."""
        self._call(self._end_thread)
        if self._thread.is_alive():
            self._thread.join()
        os.close(self._wake)

    def submit(self, given: Input, answer: AnswerTo | None = None) -> None:
        """Hand in an input; never blocks. `answer` is called in the kernel's thread, once what it says is durable."""
        self._inputs.append((given, answer))
        os.eventfd_write(self._wake, 1)

    def ping(self, answer: Callable[[], None]) -> None:
        """Call `answer` in the kernel's thread with its next turn: it shows that the kernel turns."""
        self._call(answer)

    def attach(self, end: DaemonEnd, spawned: TrainerSpawned) -> None:
        """A trainer was started: record it and, from then on, read its reports."""
        self._arriving[spawned.incarnation] = end
        self.submit(spawned)

    def _call(self, function: Callable[[], None]) -> None:
        self._inputs.append(function)
        os.eventfd_write(self._wake, 1)

    # -- in the kernel's thread ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._running:
                self._wait()
                self._turn()
        except Exception as error:
            # A defect of ours must not leave a trainer training into nothing: freeze, keep answering why.
            log.exception("the kernel failed")
            self._fail(f"the recorder failed: {error!r}; this is a defect, please report it with the log")
            while self._running:
                self._wait()
                self._turn_failed()

    def _wait(self) -> None:
        """Sleep until something is to be done; a full outbox is tried again soon."""
        end, reports = self._end, self._reports
        if end is None or reports is None or self._inputs:
            self._poll.poll(0 if self._inputs else _POLL_MS)
            return
        steps_flow = time.monotonic_ns() - self._durable.progress.last_mono < _FLOW_NS
        if steps_flow and may_wait(self._durable) and not end.waiting_count:
            # Nobody waits for these steps: look again soon, and the trainer need not wake anybody.
            self._poll.poll(_POLL_SOON_MS)
            return
        # Say that a record must wake us, then look once more. Between the two looks a store may still be on its way
        # (nothing fences them), so while steps flow the sleep is short: a lost wake costs milliseconds, never a hang.
        end.page.set_asleep(1)
        try:
            if not reports.ring_has_next:
                soon = steps_flow or end.waiting_count > 0
                self._poll.poll(1 if reports.later_waits else _POLL_SOON_MS if soon else _POLL_MS)
        finally:
            end.page.set_asleep(0)
        end.flush()

    def _turn(self) -> None:
        """One turn. A death waits for the next one while more of its reports are there than one turn takes."""
        if self._failure is not None:
            return self._turn_failed()
        self._clear_wake()
        turn = self._held or _Turn(self._clock())
        turn.now = self._clock()
        self._take_reports(turn)
        for _ in range(min(len(self._inputs), INPUTS_A_TURN)):
            item = self._inputs.popleft()
            if callable(item):
                item()
                continue
            given, answer = item
            # What it had sent may have arrived after this turn's look, so the look is taken again.
            if isinstance(given, TrainerGone) and self._take_reports(turn):
                self._inputs.appendleft(item)
                break
            if isinstance(given, TrainerSpawned):
                # Not sooner: what it reports must find it recorded.
                self._attach(given)
            self._record(decide(self._head, given, turn.now), turn, answer)
            if isinstance(given, TrainerGone) and self._reports and given.incarnation == self._reports.incarnation:
                self._detach()
        self._held = turn if self._may_hold(turn) else None
        if self._held is None and self._commit(turn):
            self._publish(turn)
        return None

    def _may_hold(self, turn: _Turn) -> bool:
        """Only step reports are ever held back, and not for long; any other event is written at once, with them."""
        is_quiet = turn.only_steps and not turn.effects and not turn.answers and 0 < len(turn.raw) < HELD_EVENTS_MAX
        return is_quiet and self._running and may_wait(self._head) and turn.now.mono - turn.began_mono < HOLD_NS

    def _clear_wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)

    def _take_reports(self, turn: _Turn) -> bool:
        """Decide on what the trainer reported; True where more may have arrived than one turn takes."""
        reports = self._reports
        if reports is None:
            return False
        try:
            taken = reports.drain(REPORTS_A_TURN)
        except ChannelError as error:
            log.warning("trainer %d: %s", reports.incarnation, error)
            self._record(refuse_report(self._head, str(error)), turn, None)
            self._detach()
            return False
        for report in taken:
            given = ReportReceived(incarnation=reports.incarnation, report=report)
            self._record(decide(self._head, given, turn.now), turn, None)
        if reports.end.closed and not taken:
            self._detach()
        return len(taken) == REPORTS_A_TURN

    def _record(self, decision: Decision, turn: _Turn, answer: AnswerTo | None) -> None:
        """Number and stamp the events, fold them into `head`, keep effects and answer for after the commit."""
        decided = stamped(decision, self._head.seq, turn.now)
        for event in decided.events:
            self._head = apply(self._head, event)
            turn.only_steps = turn.only_steps and isinstance(event, StepCompleted)
            turn.events.append((self._head.seq, event))
            turn.raw.append(encode_event(event))
        turn.effects.extend(decided.effects)
        if answer is not None and decided.answer is not None:
            turn.answers.append((answer, decided.answer))

    def _commit(self, turn: _Turn) -> bool:
        """Make this turn's events durable. False where that has failed: nothing of the turn happened."""
        if not turn.raw:
            return True
        progress = self._head.progress
        self._write_started_ns = time.monotonic_ns()
        try:
            self._journal.commit(
                turn.raw, epoch=progress.epoch, step=progress.step, wall_ns=turn.now.wall, mono_ns=turn.now.mono
            )
        except JournalError as error:
            log.critical("the journal failed: %s", error)
            self._fail(str(error))
            for answer, _ in turn.answers:
                answer(Refusal(error="NotDurable", why=str(error), phase="frozen"))
            return False
        finally:
            self._write_started_ns = 0
        self._durable = self._head
        return True

    def _publish(self, turn: _Turn) -> None:
        """Everything that may be known or done now that the turn is durable."""
        if self._end is not None and self._reports is not None:
            # First: a trainer that waits for this very number must find the gate closed where the turn has closed it.
            self._set_gate(self._end)
            self._end.page.set_durable(self._reports.last_number)
            self._end.page.set_lag_ns(LAG_NS if may_wait(self._durable) else 0)
        for effect in turn.effects:
            self._send(effect)
        for answer, given in turn.answers:
            answer(given)
        if turn.events or turn.effects:
            daemon = tuple(effect for effect in turn.effects if isinstance(effect, _DAEMON_EFFECTS))
            self._publish_to(Published(self._durable, tuple(turn.events), daemon, None))
        self._mark_hash(turn.now)

    def _set_gate(self, end: DaemonEnd) -> None:
        is_open = gate_open(self._durable)
        if is_open == end.page.frozen:
            if is_open:
                end.page.thaw()
            else:
                end.page.freeze()

    def _send(self, effect: Effect) -> None:
        """An order to the trainer; the daemon's own effects go out with `Published`."""
        if isinstance(effect, _DAEMON_EFFECTS):
            return
        if self._end is None:
            log.info("no trainer is there to obey %s", type(effect).__name__)
            return
        attachment = msgspec.msgpack.encode(self._script(effect)) if isinstance(effect, TrainFrom) else None
        self._end.send(effect, attachment)  # type: ignore[arg-type]  # every effect but the daemon's is the trainer's

    def _script(self, order: TrainFrom) -> Script:
        """What the journal says of the steps after the order's checkpoint."""
        if order.checkpoint is None:
            return Script()
        entry = next(one for one in self._durable.checkpoints.catalogue if one.id == order.checkpoint.id)
        with Reader(self._journal.folder) as reader:
            reader.seek(seq=entry.begun_seq)
            return cut_script((decode_event(record.event) for record in reader), entry.step)

    def _mark_hash(self, now: Now) -> None:
        """Now and then the state's hash goes into the journal, for replay to compare."""
        if self._durable.seq // STATE_HASH_EVENTS == self._hashed:
            return
        self._hashed = self._durable.seq // STATE_HASH_EVENTS
        try:
            self._journal.mark(FrameKind.STATE_HASH, hash_mark(self._durable), wall_ns=now.wall, mono_ns=now.mono)
        except JournalError as error:
            self._fail(str(error))

    def _attach(self, spawned: TrainerSpawned) -> None:
        self._detach()
        self._end = self._arriving.pop(spawned.incarnation)
        self._reports = Reports(self._end, spawned.incarnation)
        self._poll.register(self._end.fileno(), select.POLLIN)

    def _detach(self) -> None:
        if self._end is not None:
            if self._failure is None:
                self._poll.unregister(self._end.fileno())
            self._end.close()
        self._end = self._reports = None

    def _end_thread(self) -> None:
        self._running = False
        self._detach()

    # -- after the journal has failed ----------------------------------------------------------------------------------

    def _fail(self, why: str) -> None:
        """Freeze: no update begins any more, every order is answered with the reason. The daemon stays up."""
        if self._failure is None and self._end is not None:
            # Nobody reads its reports any more: that they wait must not wake this thread for ever.
            self._poll.unregister(self._end.fileno())
            self._reports = None
        self._failure = why
        self._head = self._durable
        self._held = None
        if self._end is not None:
            self._end.page.freeze()
        self._publish_to(Published(self._durable, (), (), why))

    def _turn_failed(self) -> None:
        """Nothing can be recorded, so nothing is decided; a signal may still end the daemon."""
        self._clear_wake()
        why = self._failure or ""
        while self._inputs:
            item = self._inputs.popleft()
            if callable(item):
                item()
                continue
            given, answer = item
            if isinstance(given, TrainerSpawned):
                # It can never be recorded, so it must not be: the end of its channel tells it to exit.
                self._arriving.pop(given.incarnation).close()
            if answer is not None:
                answer(Refusal(error="Frozen", why=why, phase="frozen"))
            if isinstance(given, SignalReceived):
                exit_ = ExitDaemon(code=_EXIT_IO, why=why)
                self._publish_to(Published(self._durable, (), (exit_,), why))
