"""One run on its host: kernel thread, supervisor, control server, telemetry and signals, until the run ends.

The host is `tolariad run`, or the recorder of a program that trains. What differs is the policy (policy.py).

Promises: the socket answers from before READY until the end, even if the journal has failed. After a stop no process
of the run is left. A fault of telemetry, logs or display does not affect the run.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
import time
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import tolariad
from journal import JournalError
from tolariad.channel import Page
from tolariad.control.peer import Operators, UnknownOperator, operators
from tolariad.control.place import Bound, adopt, bind, publish, remove_made, withdraw
from tolariad.control.server import ControlServer
from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.core.calc.run.exits import EXIT_CONFIG, EXIT_IO, ORDERLY
from tolariad.core.calc.settings.model import STOP_BUDGET_S, Settings
from tolariad.core.calc.text.phrases import with_run
from tolariad.core.calc.text.plain import safe_lines
from tolariad.core.state.run_state import RunState
from tolariad.daemon import leaving
from tolariad.daemon.disk import measured, watch_disk
from tolariad.daemon.followers import Followers
from tolariad.daemon.logging_events import log_events
from tolariad.daemon.metrics import metrics_of
from tolariad.daemon.opening import OpenRun, begin
from tolariad.daemon.place import PlaceWatch, RunPlace
from tolariad.daemon.policy import Policy
from tolariad.daemon.port import Publications, RunPort, now
from tolariad.daemon.receivers import Receivers
from tolariad.daemon.reload import Reloader
from tolariad.daemon.request import FolderLost, RunRequest, refusing
from tolariad.daemon.showing import Showing
from tolariad.daemon.signal_handler import SignalHandler
from tolariad.daemon.spending import Spending
from tolariad.daemon.strategy import Asking
from tolariad.daemon.watchdog import Watchdog
from tolariad.kernel import Kernel, Published
from tolariad.supervisor import Supervisor
from tolariad.supervisor.activation import PassedSocket
from tolariad.supervisor.notify import Notifier
from tolariad.supervisor.saved_states import SavedStates
from tolariad.telemetry.histograms import BudgetHistograms
from tolariad.telemetry.logs import DaemonLog

_log: Final = logging.getLogger(__name__)

_SWITCH_INTERVAL_S: Final = 0.0005
_SPENDING_TOLD_S: Final = 60.0
_IDLE_LOOK_S: Final = 1.0
# Limit of each of the last pieces of work: the kernel's last turns, the journal's close. A slow disk needs seconds.
_LEAVE_S: Final = 30.0
# Checkpoints with which a run ends.
_LAST: Final = (m.CheckpointReason.END, m.CheckpointReason.STOP)


class Host:
    """Serves one run. Create it on the main thread's loop and call `live` once."""

    def __init__(
        self,
        request: RunRequest,
        run: OpenRun,
        log: DaemonLog,
        policy: Policy,
        *,
        notifier: Notifier,
        passed: PassedSocket | None = None,
    ) -> None:
        self._policy = policy
        self._request = request
        self._run = run
        self._notifier = notifier
        self._passed = passed
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._exit: asyncio.Future[m.ExitDaemon] = self._loop.create_future()
        self._is_open: asyncio.Future[None] = self._loop.create_future()
        self._lingers = request.linger
        # Why it has ended.
        self.why = ""
        self._heeded_ns = time.monotonic_ns()
        self._tasks: list[asyncio.Task[Any]] = []
        settings = run.resolved.settings
        self._spending = Spending(settings)
        self._histograms = BudgetHistograms(run.state.overruns)
        self._followers = Followers(settings.follow, run.run_dir)
        self._receivers = Receivers(run.run_dir, run.run_id, started_ns=run.state.run.started_wall)
        self._receivers.configure(settings)
        self._publications = Publications(self._loop, self._heed)
        self._scheduling = policy.scheduling()
        with refusing(EXIT_IO, f"the run folder {run.run_dir} cannot be opened", OSError):
            self._place = RunPlace(run.run_dir, run.journal, policy.go_on)
        self._kernel = Kernel(
            *(run.journal, run.state),
            clock=now,
            publish=self._publish,
            scheduling=self._scheduling,
            lost=self._place.lost,
        )
        self._signals = SignalHandler(settings.signals, self._kernel, lambda why: self._end(why, st.Phase.STOPPING))
        log.bind(lambda: log_fields(run.run_dir, self._kernel.durable))
        self._saved = SavedStates(run.run_dir / "checkpoints", self._kernel.submit)
        self._asking = Asking(settings, policy.sinks, self._kernel.submit)
        self._analyses = policy.analyses(self._kernel.submit, self._scheduling)
        setup = policy.setup(self._saved.arena)
        self._supervisor = Supervisor(
            *(setup, self._kernel, policy.former()),
            defect=self._give_up,
            begin=lambda number, printed: policy.begin(number, printed, setup, self._kernel),
        )
        self._port = RunPort(
            *(run.run_dir, run.journal, self._kernel, self._page, self._publications),
            histograms=self._histograms,
            served_by=policy.served_by,
            pid=policy.pid,
            spare_bytes=lambda: policy.spare_bytes,
            receivers=self._receivers.status,
        )
        self._metrics = metrics_of(run, self._port, lambda: self._kernel.durable)
        self._bound: Bound | None = None
        self._server: ControlServer | None = None

    @property
    def state(self) -> RunState:
        """The state after the last durable event."""
        return self._kernel.durable

    def _page(self) -> Page | None:
        living = self._supervisor.living
        return living.page if living is not None else None

    # -- start, serve, leave -------------------------------------------------------------------------------------------

    async def live(self) -> int:
        """Open the journal for writing, serve the run until it ends, and shut down. Return the exit code.

        Raises StartRefused, FolderLost.
        """
        self._signals.listen(self._policy.signals)
        with refusing(EXIT_IO, "the journal cannot be opened for writing", JournalError):
            facts = begin(self._run, self._kernel)
        try:
            return await self._serve(facts)
        finally:
            await self._leave()

    def _hear_reloads(self) -> None:
        reloader = Reloader(
            *(self._request, self._run, self._kernel, self._notifier),
            check=self._may_change,
            take_over=self._take_over,
        )
        self._policy.hear_reloads(reloader.read_again)
        self._port.hear_reloads(reloader.reload)

    async def _serve(self, facts: tuple[m.Event, ...]) -> int:
        run = self._run
        await self._start_server()
        by_hand = self._server is not None and self._passed is None and "RUNTIME_DIRECTORY" not in os.environ
        link = publish(run.run_dir, run.run_dir.name) if by_hand else None
        disk = None
        with suppress(OSError):  # `watch_disk` logs it
            disk = measured(run.journal, run.state, run.resolved.settings)
        self._kernel.submit(m.Opened(mode=run.mode, facts=facts, disk=disk))
        self._loop.add_signal_handler(signal.SIGXCPU, self._scheduling.yield_up)
        self._signals.begin()
        self._policy.opened(self._kernel, lambda exit_: self._end(exit_, self._kernel.durable.run.phase))
        watch = PlaceWatch(self._place, self._kernel.check_place)
        showing = None
        try:
            await asyncio.wait((self._is_open, self._exit), return_when=asyncio.FIRST_COMPLETED)
            self._say_ready()
            self._hear_reloads()
            if self._request.progress is not None:
                showing = Showing(self._request.progress, self._port.view)
            exit_ = await self._exit
            self._notifier.stopping()
            why = with_run(exit_.why, str(self._run.run_dir))
            self._notifier.status(why)
            if lost := self._place.lost():
                raise FolderLost(EXIT_IO, lost)
            self.why = why
            level = logging.INFO if exit_.code in ORDERLY else logging.ERROR
            _log.log(level, "The daemon ends: %s", why, extra={"told_by": "summary"})
            return exit_.code
        finally:
            watch.close()
            if showing is not None:
                showing.end()
            withdraw(link, run.run_dir)

    async def _start_server(self) -> None:
        """Bind the socket. The journal's lock is held, so no other host of this run can own it."""
        if not self._policy.wants_socket:
            return
        try:
            await self._serve_socket()
        except Exception as error:  # noqa: BLE001 - the policy raises it, or goes on without a socket
            self._policy.no_socket(error)
            self._drop_socket()

    async def _serve_socket(self) -> None:
        with (
            refusing(EXIT_IO, "the control socket cannot be created", OSError),
            refusing(EXIT_CONFIG, "", UnknownOperator),
        ):
            self._bound = self._bind()
            may_change = self._may_change(self._run.resolved.settings)
            server = ControlServer(self._port, self._bound, may_change, version=tolariad.__version__)
            await server.start()
            self._server = server

    def _drop_socket(self) -> None:
        bound, self._bound = self._bound, None
        if bound is not None:
            remove_made(bound)
            bound.listener.close()

    def _bind(self) -> Bound:
        if self._passed is not None:
            return adopt(self._passed.socket, self._run.run_dir)
        folder = os.environ.get("RUNTIME_DIRECTORY", "").partition(":")[0]
        return bind(self._run.run_dir, service_folder=Path(folder) if folder else None)

    def _may_change(self, settings: Settings) -> Operators:
        group = self._bound.path.stat().st_gid if self._bound else os.getgid()
        return operators(settings.control.operators, owner_uid=os.getuid(), socket_gid=group)

    def _say_ready(self) -> None:
        """Send READY=1, after the replay and the first durable events, and start the tasks beside the run."""
        self._notifier.ready()
        try:
            self._run.journal.start_preparing()
        except JournalError as error:
            _log.warning("No spare segment could be prepared (%s). The next rotation will be slower.", error)
        # The objects of now live as long as the daemon. Freezing them spares the collector from walking them again.
        gc.collect()
        gc.freeze()
        # The default is 5 ms, for which the kernel's thread would wait while the loop computes.
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        budget_s = self._request.stop_budget_s or STOP_BUDGET_S
        attendant = Watchdog(self._notifier, self._kernel, self._port.view, self._stop_is_overdue, budget_s)
        self._start(attendant.run(), "attendant")
        self._start(self._tell_spending(), "spending")
        self._start(watch_disk(self._run.journal, self._kernel, self._run.resolved.settings), "disk watch")
        if self._run.mode is m.StartMode.ACTIVATED:
            self._start(self._end_when_idle(), "idle watch")
        self._start(self._followers.keep(), "followers")
        if self._policy.wants_socket:
            self._start(self._metrics.begin(self._run.resolved.settings.metrics.listen), "metrics")

    async def _leave(self) -> None:
        """Shut down in order: end the trainer, stop recording, close the journal."""
        await leaving.cancel(self._tasks)
        await self._metrics.close()
        await self._asking.close()
        await self._analyses.close()
        await self._policy.end_helpers()
        await self._supervisor.close()
        if self._server is not None:
            await self._server.close()
        if self._kernel.write_started_ns and self._signals.is_hurried:
            # The kernel's thread hangs in a write. It ends with the process, and the journal is as after a crash.
            _log.critical("A write to the journal does not end. The daemon exits without closing the journal.")
            return
        # Everything durable is on disk already. If one of these fails, the next start recovers as after a crash.
        await leaving.finish("the work on saved states", self._saved.close, limit_s=_LEAVE_S)
        if self._kernel.durable.run.phase not in st.TERMINAL:
            self._flush_spending()
        if await leaving.finish("the kernel", self._kernel.stop, limit_s=_LEAVE_S):
            await leaving.finish("the journal", self._run.journal.close, limit_s=_LEAVE_S)
        await asyncio.gather(
            leaving.finish("the followers", self._followers.close, limit_s=_LEAVE_S, say_s=_LEAVE_S),
            self._receivers.close(),
        )
        await self._policy.close()
        self._place.close()

    # -- what comes from the kernel ------------------------------------------------------------------------------------

    def _publish(self, published: Published) -> None:
        """Pass a durable turn to listeners and measure it. Runs in the kernel's thread."""
        self._publications.publish(published)
        try:
            self._policy.published(published)
            if self._log.tells_events:
                log_events(published.events)
            self._spending.tell(published)
            for _, event in published.events:
                self._histograms.add(event)
                self._metrics.adding.add(event)
                if isinstance(event, m.StopRequested) or (
                    isinstance(event, m.CheckpointBegun) and event.reason in _LAST
                ):
                    # The run ends soon; its last event is to be its end.
                    self._flush_spending()
            self._receivers.publish(published)
        except Exception:  # noqa: BLE001 - a measurement must not end the run
            _log.exception("The cost of a turn could not be measured; the run is not affected")

    def _heed(self, published: Published) -> None:
        """Carry out the effects of a turn. Runs on the loop."""
        self._heeded_ns = time.monotonic_ns()
        if not self._is_open.done():
            self._is_open.set_result(None)
        self._asking.prepare(published.state)
        end = self._policy.end_after(published)
        for effect in published.effects:
            if isinstance(effect, m.AskStrategy | m.AskVote):
                self._asking.obey(effect, published.state)
            elif isinstance(effect, m.AnalyzeCheckpoint | m.CancelAnalysis):
                self._analyses.obey(effect)
            elif isinstance(effect, m.ExitDaemon):
                self._end(effect, published.state.run.phase)
            elif isinstance(effect, m.SpawnTrainer | m.KillTrainer):
                if end is None or isinstance(effect, m.KillTrainer):
                    self._supervisor.obey(effect)
            else:
                self._saved.obey(effect)
        if end is not None:
            self._end(end, published.state.run.phase)

    def _end(self, effect: m.ExitDaemon, phase: st.Phase) -> None:
        if self._lingers and phase is st.Phase.COMPLETED and not self._signals.is_stop_ordered:
            self._lingers = False
            why = with_run(effect.why, str(self._run.run_dir))
            _log.info("%s. The daemon stays until it is stopped (--linger)", why)
        elif not self._exit.done():
            self._exit.set_result(effect)

    def _give_up(self, error: BaseException) -> None:
        """End the daemon because the supervisor failed. The service manager then starts a new one."""
        why = f"the supervisor failed: {error!r}; this is a defect, please report it with the log"
        self._end(m.ExitDaemon(code=EXIT_IO, why=why), st.Phase.STOPPING)

    # -- what comes from outside ---------------------------------------------------------------------------------------

    def _take_over(self, settings: Settings) -> None:
        """Apply the settings that may change in a running daemon."""
        self._log.configure(settings.logging.level, settings.logging.format)
        self._start(self._metrics.listen(settings.metrics.listen), "metrics")
        self._receivers.configure(settings)
        if self._server is not None:
            self._server.set_operators(self._may_change(settings))

    def _stop_is_overdue(self) -> None:
        self._signals.stop_at_once("the stop exceeded its budget")

    # -- beside the run ------------------------------------------------------------------------------------------------

    def _start(self, coroutine: Coroutine[Any, Any, None], name: str) -> None:
        task = self._loop.create_task(coroutine, name=name)
        task.add_done_callback(_log_failure)
        self._tasks.append(task)

    async def _tell_spending(self) -> None:
        while True:
            await asyncio.sleep(_SPENDING_TOLD_S)
            self._flush_spending()

    def _flush_spending(self) -> None:
        if spent := self._spending.taken():
            self._kernel.submit(m.BudgetsReported(tallies=spent))

    async def _end_when_idle(self) -> None:
        """End a daemon that socket activation started for a finished run, after a time without requests."""
        while True:
            await asyncio.sleep(min(_IDLE_LOOK_S, self._request.idle_exit_s / 5))
            idle_s = (time.monotonic_ns() - max(self._port.last_use_ns, self._heeded_ns)) / 1e9
            over = self._kernel.durable.run.phase in st.TERMINAL and not self._publications.has_listeners
            if over and idle_s >= self._request.idle_exit_s:
                why = f"the run has ended and nobody has asked for {self._request.idle_exit_s:.0f} s"
                self._end(m.ExitDaemon(code=0, why=why), st.Phase.STOPPED)


def log_fields(folder: Path, state: RunState) -> dict[str, object]:
    """Return the fields of every log record: the run's name, its epoch and its newest durable step."""
    progress = state.progress
    return {"run": safe_lines(folder.name), "epoch": progress.epoch, "step": progress.step}


def _log_failure(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.critical("Task %s failed; the run goes on without it", task.get_name(), exc_info=error)
