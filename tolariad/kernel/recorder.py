"""The kernel's thread and its turn (the package says what it keeps).

It must not know: how it sleeps (`wakeup`), how a trainer is reached (`line`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from journal import FrameKind, Journal, JournalError, Recovery
from tolariad.channel import ChannelError, DaemonEnd
from tolariad.core.decide import decide, overdue
from tolariad.core.decision import Decision, Refusal, stamped
from tolariad.core.inputs import Input, Now, ReportReceived, Scheduled, SignalReceived, TrainerGone, TrainerSpawned
from tolariad.core.scheduling import Pace
from tolariad.core.state import RunState, apply, capture, hash_mark
from tolariad.core.steps import may_wait, refuse_report
from tolariad.core.vocabulary import Effect, encode_event
from tolariad.core.vocabulary.checkpoints import TrainFrom
from tolariad.core.vocabulary.run import ExitDaemon
from tolariad.core.vocabulary.steps import StepCompleted, StepReport
from tolariad.core.vocabulary.trainer import ExecutionContextRecorded, SchedulingRecorded
from tolariad.kernel.script import RerunScript, ScriptLoader, ScriptRequest
from tolariad.kernel.space import commit
from tolariad.kernel.trainer_link import TrainerLink
from tolariad.kernel.turn import DAEMON_EFFECTS, AnswerTo, Published, Turn
from tolariad.kernel.wakeup import SLEEP_MAX_MS, Wakeup

STATE_HASH_EVENTS: Final = 10_000
# What a start, or a question about a run without a daemon, folds at most: a tenth of a second of it.
CAPTURE_EVENTS: Final = 4096
REPORTS_A_TURN: Final = 1024
INPUTS_A_TURN: Final = 64
# `journal.sync: batch` and `auto`: how long step reports are held back behind the look that found them. They may be a
# doze old by then (`wakeup.DOZE_MS`); between the sum of both and the lag at which the trainer waits for one (`trainer_link.LAG_NS`)
# lies the time of a write.
HOLD_NS: Final = 20_000_000
HELD_EVENTS_MAX: Final = 1024
_HELD_LOOK_MS: Final = 5
# So many short looks at the ring before the pause is considered anew.
_LOOKS: Final = 16
_FLOW_NS: Final = 1_000_000_000
_EXIT_IO: Final = 74

log = logging.getLogger("tolariad.kernel")


class Scheduling(Protocol):
    """Cores and scheduling classes, asked for in the kernel's thread, for that thread. Neither method raises."""

    def take(self, context: ExecutionContextRecorded, trainer_pid: int) -> SchedulingRecorded:
        """A trainer is ready: ask for what suits it, and tell what came of it."""

    def give_back(self) -> None:
        """The trainer is gone."""


class Kernel:
    """Owns the journal and the state of one run. Every method may be called from any thread, unless it says otherwise."""

    def __init__(
        self,
        journal: Journal,
        state: RunState,
        *,
        clock: Callable[[], Now],
        publish: Callable[[Published], None],
        scheduling: Scheduling | None = None,
    ) -> None:
        """`scheduling`: who asks for cores and classes; None leaves this thread as it is, and it never polls."""
        self._journal = journal
        self._head = state
        self._durable = state
        self._clock = clock
        self._publish_to = publish
        self._inputs: deque[tuple[Input, AnswerTo | None] | Callable[[], None]] = deque()
        self._wakeup = Wakeup()
        self._link = TrainerLink(self._wakeup)
        self._script_loader = ScriptLoader(journal.folder, self._call)
        self._scheduling = scheduling
        self._polls = False
        self._pace = Pace()
        self._held: Turn | None = None
        self._hashed = state.seq // STATE_HASH_EVENTS
        self._captured = state.seq // CAPTURE_EVENTS
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
        self._script_loader.close()
        self._wakeup.close()

    def submit(self, given: Input, answer: AnswerTo | None = None) -> None:
        """Hand in an input; never blocks. `answer` is called in the kernel's thread, once what it says is durable."""
        self._inputs.append((given, answer))
        self._wakeup.wake()

    def ping(self, answer: Callable[[], None]) -> None:
        """Call `answer` in the kernel's thread with its next turn: it shows that the kernel turns."""
        self._call(answer)

    def attach(self, end: DaemonEnd, spawned: TrainerSpawned) -> None:
        """A trainer was started: record it and, from then on, read its reports."""
        self._link.expect(spawned.incarnation, end)
        self.submit(spawned)

    def _call(self, function: Callable[[], None]) -> None:
        self._inputs.append(function)
        self._wakeup.wake()

    # -- in the kernel's thread ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._running:
                self._turn(check_socket=self._wait())
            # Whoever asks about the run while nobody drives it finds its state at the very end.
            self._mark(FrameKind.CAPTURE, capture(self._durable), self._clock())
        except Exception as error:
            # A defect of ours must not leave a trainer training into nothing: freeze, keep answering why.
            log.exception("the kernel failed")
            self._fail(f"the recorder failed: {error!r}; this is a defect, please report it with the log")
            while self._running:
                self._wait()
                self._turn_failed()

    def _wait(self) -> bool:
        """Sleep until something is to be done. Whether the trainer's socket must be looked at."""
        end, reports = self._link.end, self._link.reports
        if self._inputs:
            return True
        if end is None or reports is None:
            return self._wakeup.sleep()
        now_ns = time.monotonic_ns()
        steps_flow = now_ns - self._durable.progress.last_mono < _FLOW_NS and not end.unsent_count
        if steps_flow and may_wait(self._durable):
            return self._wakeup.doze()
        if self._polls and steps_flow and (pauses_s := self._pace.pauses_s(now_ns)) is not None:
            reports.poll_ring(self._inputs, *pauses_s, _LOOKS)
            return reports.later_record_present
        most_ms = SLEEP_MAX_MS if self._held is None else _HELD_LOOK_MS
        return self._wakeup.sleep_on_ring(end, reports, steps_flow=steps_flow, most_ms=most_ms)

    def _turn(self, *, check_socket: bool) -> None:
        """One turn; `look` at the trainer's socket whatever the page says of it. A death waits for the next one while more of its reports are there than one turn takes."""
        if self._failure is not None:
            return self._turn_failed()
        self._wakeup.clear()
        now = self._clock()
        turn = self._held or Turn(now)
        turn.now = now
        self._take_reports(turn, check_socket=check_socket)
        for _ in range(min(len(self._inputs), INPUTS_A_TURN)):
            item = self._inputs.popleft()
            if callable(item):
                item()
                continue
            given, answer = item
            # What it had sent may have arrived after this turn's look, so the look is taken again.
            if isinstance(given, TrainerGone) and self._take_reports(turn, check_socket=True):
                self._inputs.appendleft(item)
                break
            if isinstance(given, TrainerSpawned):
                # Not sooner: what it reports must find it recorded.
                self._link.connect(given.incarnation)
            self._record(decide(self._head, given, turn.now), turn, answer)
            if isinstance(given, TrainerGone) and self._link.is_connected_to(given.incarnation):
                self._disconnect()
        if (late := overdue(self._head, turn.now)) is not None:
            self._record(decide(self._head, late, turn.now), turn, None)
        self._held = turn if self._may_hold(turn) else None
        if self._held is None and self._commit(turn):
            self._publish(turn)
        return None

    def _may_hold(self, turn: Turn) -> bool:
        """Only step reports are ever held back, and not for long; any other event is written at once, with them."""
        if not turn.only_steps or not turn.raw or not may_wait(self._head):
            return False
        is_quiet = not turn.effects and not turn.answers and len(turn.raw) < HELD_EVENTS_MAX
        return is_quiet and self._running and turn.now.mono - turn.began_mono < HOLD_NS

    def _take_reports(self, turn: Turn, *, check_socket: bool) -> bool:
        """Decide on what the trainer reported; True where more may have arrived than one turn takes."""
        reports = self._link.reports
        if reports is None:
            return False
        try:
            taken = reports.drain(REPORTS_A_TURN, check_socket=check_socket)
        except ChannelError as error:
            log.warning("trainer %d: %s", reports.incarnation, error)
            self._record(refuse_report(self._head, str(error)), turn, None)
            self._disconnect()
            return False
        steps = 0
        for report in taken:
            steps += type(report) is StepReport
            given = ReportReceived(incarnation=reports.incarnation, report=report)
            self._record(decide(self._head, given, turn.now), turn, None)
        if steps and self._polls:
            self._pace.took(steps, turn.now.mono)
        if reports.end.closed and not taken:
            self._disconnect()
        return len(taken) == REPORTS_A_TURN

    def _record(self, decision: Decision, turn: Turn, answer: AnswerTo | None) -> None:
        """Number and stamp the events, fold them into `head`, keep effects and answer for after the commit."""
        decided = stamped(decision, self._head.seq, turn.now)
        for event in decided.events:
            self._head = apply(self._head, event)
            if type(event) is not StepCompleted:
                turn.only_steps = False
                if type(event) is ExecutionContextRecorded:
                    turn.context = event
            turn.events.append((self._head.seq, event))
            turn.raw.append(encode_event(event))
        turn.effects.extend(decided.effects)
        if answer is not None and decided.answer is not None:
            turn.answers.append((answer, decided.answer))

    def _commit(self, turn: Turn) -> bool:
        """Make this turn's events durable. False where that has failed: nothing of the turn happened."""
        if not turn.raw:
            return True
        progress, now = self._head.progress, turn.now
        self._write_started_ns = begun_ns = time.monotonic_ns()
        try:
            commit(
                self._journal, turn.raw, epoch=progress.epoch, step=progress.step, wall_ns=now.wall, mono_ns=now.mono
            )
        except JournalError as error:
            log.critical("the journal failed: %s", error)
            self._fail(str(error))
            for answer, _ in turn.answers:
                answer(Refusal(error="NotDurable", why=str(error), phase="frozen"))
            return False
        finally:
            self._write_started_ns = 0
        turn.write_ns = time.monotonic_ns() - begun_ns
        self._durable = self._head
        return True

    def _publish(self, turn: Turn) -> None:
        """Everything that may be known or done now that the turn is durable."""
        self._link.show_durable(self._durable, only_steps=turn.only_steps)
        for effect in turn.effects:
            self._send(effect)
        for answer, given in turn.answers:
            answer(given)
        if turn.events or turn.effects:
            self._publish_to(Published(self._durable, tuple(turn.events), turn.published, None, turn.write_ns))
        if turn.context is not None:
            self._schedule(turn.context)
        self._mark_state(turn.now)

    def _schedule(self, context: ExecutionContextRecorded) -> None:
        """A trainer is ready and has its order: from here on its steps are what this thread is there for."""
        if self._scheduling is None:
            return
        recorded = self._scheduling.take(context, self._durable.trainer.pid)
        self._polls = recorded.polls
        self.submit(Scheduled(recorded=recorded))

    def _disconnect(self) -> None:
        self._script_loader.cancel()
        self._link.disconnect()
        self._stop_serving()

    def _stop_serving(self) -> None:
        """No steps come any more: a thread like any other, which sleeps."""
        self._polls = False
        self._pace.forget()
        if self._scheduling is not None:
            self._scheduling.give_back()

    def _send(self, effect: Effect) -> None:
        """An order to the trainer; the daemon's own effects go out with `Published`."""
        if isinstance(effect, DAEMON_EFFECTS):
            return
        if isinstance(effect, TrainFrom):
            self._order_training(effect)
        else:
            self._link.send(effect, None)  # type: ignore[arg-type]  # every effect but the daemon's is the trainer's

    def _order_training(self, order: TrainFrom) -> None:
        """With the script of what it runs again. Other orders may overtake it: the trainer starts with this one."""
        reports, request = self._link.reports, ScriptRequest.for_order(order, self._durable)
        if reports is None:
            return
        if request.checkpoint is None:
            # There is little to read yet.
            script = RerunScript.from_journal(self._journal.folder, request, threading.Event())
            self._link.send(order, script.payload)
            return
        incarnation = reports.incarnation

        def send(script: RerunScript) -> None:
            if self._link.is_connected_to(incarnation):
                self._link.send(order, script.payload)

        self._script_loader.load(request, send)

    def _mark_state(self, now: Now) -> None:
        """Now and then the state goes into the journal, to start folding from, and its hash, for replay to compare."""
        hashed, captured = self._durable.seq // STATE_HASH_EVENTS, self._durable.seq // CAPTURE_EVENTS
        if hashed != self._hashed:
            self._hashed = hashed
            self._mark(FrameKind.STATE_HASH, hash_mark(self._durable), now)
        if captured != self._captured:
            self._captured = captured
            self._mark(FrameKind.CAPTURE, capture(self._durable), now)

    def _mark(self, kind: FrameKind, body: bytes, now: Now) -> None:
        """Write a frame without events, unless the journal has failed."""
        if self._failure is not None:
            return
        self._write_started_ns = time.monotonic_ns()
        try:
            self._journal.mark(kind, body, wall_ns=now.wall, mono_ns=now.mono)
        except JournalError as error:
            self._fail(str(error))
        finally:
            self._write_started_ns = 0

    def _end_thread(self) -> None:
        self._running = False
        self._disconnect()

    # -- after the journal has failed ----------------------------------------------------------------------------------

    def _fail(self, why: str) -> None:
        """Freeze: no update begins any more, every order is answered with the reason. The daemon stays up."""
        self._failure = why
        self._head = self._durable
        self._held = None
        self._script_loader.cancel()
        self._link.freeze()
        self._stop_serving()
        self._publish_to(Published(self._durable, (), (), why))

    def _turn_failed(self) -> None:
        """Nothing can be recorded, so nothing is decided; a signal may still end the daemon."""
        self._wakeup.clear()
        why = self._failure or ""
        while self._inputs:
            item = self._inputs.popleft()
            if callable(item):
                item()
                continue
            given, answer = item
            if isinstance(given, TrainerSpawned):
                self._link.reject(given.incarnation)
            if answer is not None:
                answer(Refusal(error="Frozen", why=why, phase="frozen"))
            if isinstance(given, SignalReceived):
                exit_ = ExitDaemon(code=_EXIT_IO, why=why)
                self._publish_to(Published(self._durable, (), (exit_,), why))
