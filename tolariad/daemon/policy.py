"""What differs between the two hosts of a run: `tolariad run`, and the recorder of a program that trains (program.py).

Everything else is one code (live.py). docs/hosts.md has the differences as a table.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from tolariad.control.replies import Server
from tolariad.core import messages as m
from tolariad.core.calc.run.exits import EXIT_IO
from tolariad.daemon.analysing import Analysing
from tolariad.daemon.opening import OpenRun, earlier_threads
from tolariad.daemon.request import RunRequest, refusing
from tolariad.daemon.settings import RESOLVED_NAME
from tolariad.supervisor import FormerTrainer, TrainerSetup
from tolariad.supervisor.cpu_affinity import Scheduling
from tolariad.supervisor.incarnation import Incarnation, Recorder, RunningTrainer
from tolariad.supervisor.output import Sink
from tolariad.supervisor.spare import Spares
from tolariad.telemetry.writer import LogFile

if TYPE_CHECKING:
    from tolariad.kernel import Kernel, Published

End = Callable[[m.ExitDaemon], None]


class Analyses(Protocol):
    """Carries out the analyses of checkpoints, each with one reply. It belongs to the event loop."""

    def obey(self, effect: m.AnalyzeCheckpoint | m.CancelAnalysis) -> None:
        """Begin an analysis, or end one."""

    async def close(self) -> None:
        """End what was begun."""


class Policy(Protocol):
    """The answers of one host. All methods but `published` are called on the event loop."""

    # What clients are told: who serves the run, in which process it trains.
    served_by: Server
    pid: int
    # The signals to this process that it acts on. Others are left as they are.
    signals: tuple[signal.Signals, ...]
    # Where the output of the run's processes goes.
    sinks: tuple[Sink, ...]
    # What goes on with a run whose folder was moved, with `{}` for the folder.
    go_on: str

    @property
    def wants_socket(self) -> bool:
        """Whether there is to be a control socket."""

    def scheduling(self) -> Scheduling:
        """Return who asks the system for cores."""

    def setup(self, arena: int) -> TrainerSetup:
        """Return how trainers are started. `arena`: the descriptor of the memory for snapshots."""

    def begin(self, number: int, printed: str, setup: TrainerSetup, recorder: Recorder) -> RunningTrainer:
        """Start a trainer. `printed`: the mark of the traceback that an earlier one printed. Raises OSError."""

    def analyses(self, submit: Callable[[m.AnalysisReply], None], scheduling: Scheduling) -> Analyses:
        """Return who analyses checkpoints for pruning."""

    def former(self) -> FormerTrainer | None:
        """Return the trainer of an earlier host that may be killed if it lives."""

    def no_socket(self, error: Exception) -> None:
        """Take it that the control socket cannot be served. May raise the error."""

    def opened(self, kernel: Kernel, end: End) -> None:
        """The start is submitted to the kernel: orders and signals may follow it from now on."""

    @property
    def spare_bytes(self) -> int | None:
        """The memory in bytes of a process that waits to take the trainer's place; None if there is none."""

    async def end_helpers(self) -> None:
        """End the processes that wait for a trainer's end, while the journal is open."""

    def hear_reloads(self, read_again: Callable[[], None]) -> None:
        """Let the configuration be read again, as this host does it."""

    def published(self, turn: Published) -> None:
        """Pass on a durable turn. The kernel's thread calls this; it must neither wait nor raise."""

    def end_after(self, turn: Published) -> m.ExitDaemon | None:
        """Return how the host ends after this turn, if the turn itself does not say so."""

    async def close(self) -> None:
        """Release what belongs to it, last of all."""


class DaemonPolicy:
    """`tolariad run`: it starts trainers as processes of its own, again and again, until the run ends."""

    served_by: Server = "daemon"
    go_on = "`tolariad run --dir {}`"
    signals: tuple[signal.Signals, ...] = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)

    def __init__(self, request: RunRequest, run: OpenRun, log: Sink) -> None:
        """`log` gets the output of the run's processes too. Raises StartRefused if there can be no trainer.log."""
        self._request, self._run = request, run
        self._setup: TrainerSetup | None = None
        self._spares: Spares | None = None
        self.pid = os.getpid()
        path = run.run_dir / "logs" / "trainer.log"
        with refusing(EXIT_IO, f"{path} cannot be written", OSError):
            self._trainer_log = LogFile(path, "trainer-log")
        # The trainer's output goes through the log, so that lines of the two are never mixed.
        self.sinks: tuple[Sink, ...] = (self._trainer_log.write, log)

    @property
    def wants_socket(self) -> bool:
        """Every daemon has one."""
        return True

    def scheduling(self) -> Scheduling:
        """Return who asks the system for cores."""
        settings = self._run.resolved.settings
        return Scheduling(self._run.journal.folder, settings.workers, ranks=settings.parallel.ranks)

    def setup(self, arena: int) -> TrainerSetup:
        """Return the command of a trainer's process."""
        folder = self._run.run_dir
        threads = earlier_threads(self._run)
        own = (
            *(sys.executable, "-m", "tolariad.trainer", "--run", str(folder)),
            *("--config-json", str(folder / RESOLVED_NAME), "--run-id", self._run.run_id.hex()),
            *(("--torch-threads", str(threads)) if threads else ()),
        )
        self._setup = TrainerSetup(
            run_dir=folder,
            command=self._request.trainer_command or own,
            environment=dict(os.environ),
            sinks=self.sinks,
            timeouts=self._request.timeouts,
            ring=arena,
            ranks=self._run.resolved.settings.parallel.ranks,
        )
        return self._setup

    def begin(self, number: int, printed: str, setup: TrainerSetup, recorder: Recorder) -> RunningTrainer:
        """Let the spare take over, or start a process. Raises OSError."""
        spare = self._spares.take(number, printed) if self._spares else None
        return Incarnation(number, setup, recorder, printed, spare)

    def analyses(self, submit: Callable[[m.AnalysisReply], None], scheduling: Scheduling) -> Analyses:
        """Analyse in processes of their own, which build the task."""
        return Analysing(
            *(self._run.resolved.settings, self._run.run_dir, self.sinks, submit),
            core=lambda: scheduling.recorders_core,
            cores=scheduling.cores,
        )

    def former(self) -> FormerTrainer | None:
        """Return the process of the trainer that the journal knows, if there was one."""
        known = self._run.former
        return FormerTrainer(known.pid, known.start_ticks, known.boot_id) if known.pid else None

    def no_socket(self, error: Exception) -> None:
        """Refuse the start: a daemon that nobody can stop is of no use."""
        raise error

    def opened(self, kernel: Kernel, end: End) -> None:  # noqa: ARG002 - the policy's signature
        """Keep a spare from now on. Signals come by the host."""
        # Another program that trains knows nothing of spares.
        if self._setup is not None and self._request.trainer_command is None:
            wanted = self._run.resolved.settings.trainer.spare
            self._spares = Spares(self._setup, wanted, lambda: kernel.durable, kernel.submit)
            self._spares.begin()

    @property
    def spare_bytes(self) -> int | None:
        """The memory of a spare that is ready."""
        return self._spares.memory if self._spares else None

    async def end_helpers(self) -> None:
        """End the spare."""
        if self._spares is not None:
            await self._spares.close()

    def hear_reloads(self, read_again: Callable[[], None]) -> None:
        """Read the configuration again at SIGHUP."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, read_again)

    def published(self, turn: Published) -> None:
        """Clients are told by the host."""

    def end_after(self, turn: Published) -> None:
        """A daemon ends when the run says so."""

    async def close(self) -> None:
        """Close the trainer's log."""
        self._trainer_log.close()
