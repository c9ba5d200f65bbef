"""The kernel's thread and its turn. The docstring of the package lists the invariants."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from journal import Journal, JournalError, Recovery
from tolariad.channel import ChannelError, DaemonEnd
from tolariad.core import messages as m
from tolariad.core import queries as q
from tolariad.core.calc.run.cpu_placement import Pace
from tolariad.core.calc.run.exits import EXIT_IO
from tolariad.core.rules.table.decide import overdue
from tolariad.core.state.run_state import RunState, capture
from tolariad.kernel.marks import StateMarks
from tolariad.kernel.script import ScriptLoader
from tolariad.kernel.thread_priority import Scheduling
from tolariad.kernel.trainer_link import TrainerLink
from tolariad.kernel.turn import AnswerTo, Published, Turn, log, refuse_late
from tolariad.kernel.wakeup import DOZE_MS, FLOW_NS, HELD_LOOK_MS, LOOKS, SLEEP_MAX_MS, Wakeup

# Both bound a turn: an answer waits at most for so much work, and one kind of input cannot starve the other.
REPORTS_A_TURN: Final = 1024
INPUTS_A_TURN: Final = 64
# `journal.sync: batch` and `auto`: how long the kernel holds back step reports after it has found them. They may be
# `wakeup.DOZE_MS` old by then. The sum must leave time for a write before `trainer_link.LAG_NS`, at which the trainer
# waits at its gate (a test compares the three).
HOLD_NS: Final = 20_000_000
HELD_EVENTS_MAX: Final = 1024


class Kernel:
    """Owns the journal and the state of one run. Public methods may be called from any thread."""

    def __init__(
        self,
        journal: Journal,
        state: RunState,
        *,
        clock: Callable[[], m.Now],
        publish: Callable[[Published], None],
        scheduling: Scheduling | None = None,
        lost: Callable[[], str] = str,
    ) -> None:
        """`scheduling` None: this thread keeps its cores and class, and never polls.

        `lost` returns what happened to the run's files if they are not at their place any more, else "".
        """
        self._journal = journal
        # Invariant: `head` is `durable` plus the events of the turn in progress, or of the one that is held back. Only
        # this thread reads `head`.
        self._head = state
        self._durable = state
        self._clock = clock
        self._publish_to = publish
        self._inputs: deque[tuple[m.Input, AnswerTo | None] | Callable[[], None]] = deque()
        self._wakeup = Wakeup()
        self._link = TrainerLink(self._wakeup)
        self._script_loader = ScriptLoader(journal.folder, self.call)
        self._scheduling = scheduling
        self._lost = lost
        self._polls = False
        self._pace = Pace()
        # A turn of steps that is decided and not written yet. It has no effects and no answers, so nobody waits for it.
        self._held: Turn | None = None
        self._marks = StateMarks(state.seq)
        self._running = True
        self._failure: str | None = None
        self._write_started_ns = 0
        self._waits_for_space = False
        self._thread = threading.Thread(target=self._run, name="tolaria-kernel", daemon=True)

    # -- from other threads --------------------------------------------------------------------------------------------

    @property
    def durable(self) -> RunState:
        """The state after the last event on disk. It is immutable, so readers need no lock."""
        return self._durable

    @property
    def failure(self) -> str | None:
        """Why nothing can be recorded any more, or None."""
        return self._failure

    @property
    def is_over(self) -> bool:
        """Whether `stop` has ended the thread: no turn follows, and every later order is refused."""
        return self._wakeup.is_closed

    @property
    def write_started_ns(self) -> int:
        """Monotonic time in ns at which the write in flight began, or 0 if none is in flight."""
        return self._write_started_ns

    @property
    def waits_for_space(self) -> bool:
        """Whether the write in flight waits until there is space on the disk."""
        return self._waits_for_space

    def begin(self, run_id: bytes, context_hash: bytes, boot_id: bytes) -> Recovery:
        """Open the scanned and folded journal for writing. Call it before `start`. Raises JournalError."""
        return self._journal.begin(
            run_id=run_id,
            context_hash=context_hash,
            # A rotation happens before a batch is written. The new segment must then start with the state before that
            # batch, which is `durable`, not `head`.
            capture=lambda: capture(self._durable),
            wall_ns=self._clock().wall,
            boot_id=boot_id,
        )

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Take the inputs queued so far, then end the thread. The caller closes the journal."""
        # Queued like any input, so everything submitted before is decided and written first.
        self.call(self._end_thread)
        if self._thread.is_alive():
            self._thread.join()
        self._script_loader.close()
        self._wakeup.close()
        refuse_late(self._inputs, self._durable)

    def submit(self, given: m.Input, answer: AnswerTo | None = None) -> None:
        """Queue an input; never blocks. The kernel's thread calls `answer` once the answer's events are durable.

        After `stop` this thread calls it, with a refusal.
        """
        # A deque's append is atomic. First the input, then the wake-up: the thread clears the wake-up before it looks.
        self._inputs.append((given, answer))
        if not self._wakeup.wake():
            refuse_late(self._inputs, self._durable)

    def call(self, function: Callable[[], None]) -> None:
        """Call `function` in the kernel's thread, once what was submitted before is decided. Never blocks."""
        self._inputs.append(function)
        self._wakeup.wake()

    def check_place(self) -> None:
        """Check that the run's files are at their place. If they are not, freeze the run and end the daemon."""
        self.call(self._check_place)

    def attach(self, end: DaemonEnd, spawned: m.TrainerSpawned) -> None:
        """Record that a trainer was started; read its reports from then on."""
        # In this order: a turn may decide the input before `submit` returns, and it then takes the channel.
        self._link.expect(spawned.incarnation, end)
        self.submit(spawned)

    # -- in the kernel's thread ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._running:
                self._turn(check_socket=self._wait())
            # A journal as small as its content. The state is at its end, so `tolaria status` of the run folds nothing.
            now = self._clock()
            self._write(partial(self._journal.finish, wall_ns=now.wall, mono_ns=now.mono))
        except Exception as error:  # noqa: BLE001 - logged, and every order is answered with it
            # A defect of the recorder must not let a trainer train without a record. Freeze, and answer every order
            # with the reason.
            log.exception("the kernel failed")
            self._fail(f"the recorder failed: {error!r}; this is a defect, please report it with the log")
            while self._running:
                self._wait()
                self._turn_failed()

    def _wait(self) -> bool:
        """Sleep until there is work. Return whether the next turn must read the trainer's socket."""
        end, reports = self._link.end, self._link.reports
        if self._inputs:
            # More inputs than one turn takes. Reports must not wait for them all, so read the socket too.
            return True
        if end is None or reports is None:
            return self._wakeup.sleep()
        now_ns = time.monotonic_ns()
        steps_flow = now_ns - self._durable.progress.last_mono < FLOW_NS and not end.unsent_count
        if steps_flow and q.may_wait(self._durable):
            # Its steps may be held back, so the trainer need not wake this thread.
            return self._wakeup.sleep(DOZE_MS)
        if self._polls and steps_flow and (pauses_s := self._pace.pauses_s(now_ns)) is not None:
            reports.poll_ring(self._inputs, *pauses_s, LOOKS)
            return reports.later_record_present
        most_ms = SLEEP_MAX_MS if self._held is None else HELD_LOOK_MS
        return self._wakeup.sleep_on_ring(end, reports, steps_flow=steps_flow, most_ms=most_ms)

    def _turn(self, *, check_socket: bool) -> None:
        """Take one turn. `check_socket`: read the trainer's socket even if the page announces no report there.

        TrainerGone is deferred to the next turn until the trainer's reports are drained.
        """
        if self._failure is not None:
            return self._turn_failed()
        self._wakeup.clear()
        now = self._clock()
        # A held turn goes on with the time of this one: its frame carries one time, that at which it is written.
        turn = self._held or Turn(now)
        turn.now = now
        # Reports before inputs: an order is decided on the trainer's newest step, not on one that has been passed.
        self._take_reports(turn, check_socket=check_socket)
        # Only those that are here now: an input that arrives meanwhile waits for the next turn, so that this one ends.
        for _ in range(min(len(self._inputs), INPUTS_A_TURN)):
            if turn.is_full:
                break
            item = self._inputs.popleft()
            if callable(item):
                item()
                continue
            given, answer = item
            # Its last reports may have arrived after `_take_reports` above. Drain them before the death is decided: a
            # step that was applied and reported counts.
            if isinstance(given, m.TrainerGone) and self._take_reports(turn, check_socket=True):
                self._inputs.appendleft(item)
                break
            if isinstance(given, m.TrainerSpawned):
                # Connect in the turn that records the start, not before: a report must not precede its trainer's start.
                self._link.connect(given.incarnation)
            self._decide(given, turn, answer)
            # After its death is decided, and only its own channel: the next trainer's may be expected already.
            if isinstance(given, m.TrainerGone) and self._link.is_connected_to(given.incarnation):
                self._disconnect()
        # Deadlines last: an input of this turn may be the very one that a deadline waits for.
        if (late := overdue(self._head, turn.now)) is not None:
            self._decide(late, turn, None)
        self._held = turn if self._may_hold(turn) else None
        if self._held is None and self._commit(turn):
            self._publish(turn)
        return None

    def _may_hold(self, turn: Turn) -> bool:
        """Return whether to write this turn later. Only turns of nothing but steps are held back, for `HOLD_NS`."""
        if not turn.only_steps or not turn.raw or not q.may_wait(self._head):
            return False
        is_quiet = not turn.effects and not turn.answers and len(turn.raw) < HELD_EVENTS_MAX
        return is_quiet and self._running and turn.now.mono - turn.began_mono < HOLD_NS

    def _take_reports(self, turn: Turn, *, check_socket: bool) -> bool:
        """Decide the trainer's reports. Return True if there may be more of them than one turn takes."""
        reports = self._link.reports
        if reports is None:
            return False
        try:
            # If a send has found the other side gone, its last reports are still in the socket.
            taken = reports.drain(REPORTS_A_TURN, check_socket=check_socket or reports.end.closed)
        except ChannelError as error:
            # Nothing that follows on this channel can be trusted. The next trainer starts from what is recorded.
            log.warning("trainer %d: %s", reports.incarnation, error)
            self._decide(m.ReportUnusable(incarnation=reports.incarnation, why=str(error)), turn, None)
            self._disconnect()
            return False
        # One decision for each report, in order: each may depend on the state that the one before it left.
        steps = 0
        for report in taken:
            steps += type(report) is m.StepReport
            self._decide(m.ReportReceived(incarnation=reports.incarnation, report=report), turn, None)
        if steps and self._polls:
            self._pace.took(steps, turn.now.mono)
        if reports.end.closed and not taken:
            self._disconnect()
        return reports.is_cut

    def _decide(self, given: m.Input, turn: Turn, answer: AnswerTo | None) -> None:
        """Decide on one input and take over the state after it."""
        self._head = turn.decide(self._head, given, answer)

    def _commit(self, turn: Turn) -> bool:
        """Make this turn's events durable. Return False if that failed: then nothing of the turn has happened."""
        # An answer without an event, such as most refusals, promises nothing that a crash could break.
        if not turn.raw:
            return True
        self._write_started_ns = time.monotonic_ns()
        try:
            turn.commit(self._journal, self._head, self._begin_wait)
        except JournalError as error:
            log.critical("The journal cannot be written (%s). The run is frozen: no update begins any more.", error)
            self._fail(str(error))
        finally:
            self._write_started_ns, self._waits_for_space = 0, False
        # A descriptor of a deleted file takes writes as before. Check again before the frame is acknowledged as
        # durable.
        if turn.answers:
            self._check_place()
        if self._failure is not None:
            for answer, _ in turn.answers:
                answer(m.Refusal(error="NotDurable", why=self._failure, phase="frozen"))
            return False
        # Only here does `head` become `durable`: everything outside this thread reads `durable`.
        self._durable = self._head
        return True

    def _begin_wait(self) -> None:
        self._waits_for_space = True

    def _publish(self, turn: Turn) -> None:
        """Show, send and answer what this turn decided, now that it is durable."""
        # The page first: the trainer may be waiting at its gate for exactly this number.
        self._link.show_durable(self._durable, only_steps=turn.only_steps, write_ns=turn.write_ns)
        for effect in turn.effects:
            # The daemon's effects leave with `Published`.
            if isinstance(effect, m.TrainFrom):
                self._script_loader.send(effect, self._durable, self._link)
            elif isinstance(effect, m.TrainerEffect):
                self._link.send(effect, None)
        for answer, given in turn.answers:
            answer(given)
        if turn.events or turn.effects:
            self._publish_to(Published(self._durable, tuple(turn.events), turn.published, None, turn.write_ns))
        # Not before: cores and classes are asked for on behalf of a trainer that the journal knows to be ready.
        if turn.context is not None:
            self._schedule(turn.context)
        # Last, so that no answer waits for it. A crash before it only makes the next fold longer.
        self._mark_state(turn.now)

    def _schedule(self, context: m.ExecutionContextRecorded) -> None:
        """Ask for a core and a scheduling class: a trainer is ready and has its order."""
        if self._scheduling is None:
            return
        recorded = self._scheduling.take(context, self._durable.trainer.pid)
        self._polls = recorded.polls
        self.submit(m.Scheduled(recorded=recorded))

    def _disconnect(self) -> None:
        self._script_loader.cancel()
        self._link.disconnect()
        self._stop_serving()

    def _stop_serving(self) -> None:
        """Give back core and class: no steps come any more, so this thread sleeps instead of polling."""
        self._polls = False
        self._pace.forget()
        if self._scheduling is not None:
            self._scheduling.give_back()

    def _mark_state(self, now: m.Now) -> None:
        for kind, body in self._marks.due(self._durable):
            self._write(partial(self._journal.mark, kind, body, wall_ns=now.wall, mono_ns=now.mono))

    def _write(self, write: Callable[[], None]) -> None:
        """Write frames without events, unless the journal has failed."""
        if self._failure is not None:
            return
        self._write_started_ns = time.monotonic_ns()
        try:
            write()
        except JournalError as error:
            self._fail(str(error))
        finally:
            self._write_started_ns = 0

    def _end_thread(self) -> None:
        # From here on `_may_hold` is false, so a turn that was held back is written before the thread ends.
        self._running = False
        self._disconnect()

    # -- after the journal has failed ----------------------------------------------------------------------------------

    def _check_place(self) -> None:
        if why := self._lost():
            self._fail(why, m.ExitDaemon(code=EXIT_IO, why=why))

    def _fail(self, why: str, *effects: m.ExitDaemon) -> None:
        """Freeze: no update begins any more, and every order is refused. `effects` may end the daemon."""
        # For good: whether the failed frame is on disk is unknown until the next start has scanned the journal.
        self._failure = why
        # The events after `durable` are lost. Nobody has seen them, so state goes back to before them.
        self._head = self._durable
        self._held = None
        self._script_loader.cancel()
        self._link.freeze()
        self._stop_serving()
        self._publish_to(Published(self._durable, (), effects, why))

    def _turn_failed(self) -> None:
        """Refuse every input, since nothing can be recorded. A signal still ends the daemon."""
        self._wakeup.clear()
        why = self._failure or ""
        while self._inputs:
            item = self._inputs.popleft()
            # Functions are still called: `stop` must end this thread after a failure too.
            if callable(item):
                item()
                continue
            given, answer = item
            if isinstance(given, m.TrainerSpawned):
                self._link.reject(given.incarnation)
            if answer is not None:
                answer(m.Refusal(error="Frozen", why=why, phase="frozen"))
            if isinstance(given, m.SignalReceived):
                self._publish_to(Published(self._durable, (), (m.ExitDaemon(code=EXIT_IO, why=why),), why))
