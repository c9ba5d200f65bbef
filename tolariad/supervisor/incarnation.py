"""One trainer process from start to end: channel, output, heartbeat, and the cause of its end.

`RunningTrainer` is the part that a trainer thread has too. Promises: the end is reported once, after the process is
reaped and its process group is dead. The stacks of a hung trainer are taken before it is killed. A trainer that
survives SIGKILL is reported as stuck, and waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from abc import abstractmethod
from pathlib import Path
from typing import Final, Protocol

import msgspec

from tolariad import loop_files, run_files
from tolariad.boot import boot_id
from tolariad.channel import DaemonEnd, Heartbeat, Page
from tolariad.core import messages as m
from tolariad.core.calc.text.tracebacks import mark_of
from tolariad.signals import STACKS
from tolariad.supervisor.hang import HangMonitor, Silence
from tolariad.supervisor.other_ranks import Cause, Members
from tolariad.supervisor.output import OutputCapture
from tolariad.supervisor.process import ChildProcess, Evidence, death_reason
from tolariad.supervisor.procfs import catches, oom_kill_count, wait_channel
from tolariad.supervisor.started import StartedTrainer, Timeouts, TrainerSetup

_log: Final = logging.getLogger(__name__)

_STACKS_BYTES_MAX: Final = 64 * 1024


class Recorder(Protocol):
    """The part of the kernel to which a trainer's start and end are reported."""

    def attach(self, end: DaemonEnd, spawned: m.TrainerSpawned) -> None:
        """Record that a trainer exists and take over the daemon's end of its channel."""

    def submit(self, given: m.Input) -> None:
        """Record an input; never waits."""


class RunningTrainer:
    """A running trainer, process or thread: reads its page, watches its heartbeat, ends it, and reports its end.

    A subclass starts it, sets `_gone` when it has ended, and supplies the abstract methods. Use it on the main thread's
    event loop; any thread may read the properties.
    """

    _page: Page

    def __init__(self, number: int, timeouts: Timeouts, recorder: Recorder) -> None:
        self.number = number
        self._timeouts = timeouts
        self._recorder = recorder
        self._gone = asyncio.Event()
        # When it was first told to end; 0 while it may live.
        self._ended_ns = 0
        self._hung = False
        # Of several that train together, the one that was found silent.
        self._silent_rank = 0
        # The mark of the traceback that this one or an earlier one printed: the next one does not print it again.
        self.printed = ""

    @property
    def heartbeat(self) -> Heartbeat | None:
        """The last heartbeat, or None if the trainer has overwritten the page with invalid values."""
        try:
            return self._page.heartbeat
        except ValueError:
            return None

    @property
    def page(self) -> Page:
        """The trainer's page. After the trainer's end it raises ValueError."""
        return self._page

    @property
    @abstractmethod
    def pid(self) -> int:
        """The id of the process that the trainer runs in."""

    def kill(self, why: str) -> None:
        """End it without another update. A no-op if it has ended, or is being ended because it hung."""
        if self._hung or self._gone.is_set():
            return
        _log.info("Ending trainer %d (pid %d): %s", self.number, self.pid, why)
        self._end_now()

    def _end_now(self) -> None:
        self._ended_ns = self._ended_ns or time.monotonic_ns()
        self._cut_off()

    async def run(self) -> None:
        """Watch the trainer until it has ended, then report the cause."""
        stacks, reported_stuck = "", False
        monitor = HangMonitor(self._timeouts.hang, time.monotonic_ns())
        while not await self._gone_within(self._timeouts.poll_s):
            beat = self.heartbeat
            if self._ended_ns:
                reported_stuck = reported_stuck or self._report_if_stuck()
            elif (found := self._stopped(time.monotonic())) is not None:
                self._silent_rank = found[0]
                self._report_hang(found[1])
                self._end_now()
            elif beat is not None and (silence := monitor.check(beat, time.monotonic_ns())):
                # Rank 0 is silent too while it waits for another one.
                self._silent_rank = self._behind()
                self._report_hang(silence)
                stacks = await self._take_stacks()
                self._end_now()
        self._recorder.submit(self._end(stacks))

    async def _gone_within(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._gone.wait()
        return self._gone.is_set()

    def _report_if_stuck(self) -> bool:
        waited_s = (time.monotonic_ns() - self._ended_ns) / 1e9
        if waited_s < self._timeouts.kill_s:
            return False
        state = self._state()
        _log.error("Trainer %d (pid %d, %s) does not end. No other one is started.", self.number, self.pid, state)
        self._recorder.submit(m.TrainerStuck(incarnation=self.number, pid=self.pid, state=state, waited_s=waited_s))
        return True

    def _report_hang(self, silence: Silence) -> None:
        self._hung = True
        self._recorder.submit(self._as_silent(silence))
        who = f"Rank {self._silent_rank} of trainer" if self._silent_rank else "Trainer"
        _log.error(
            "%s %d (pid %d) has been silent for %.0f s in activity %s. It has hung and is ended.",
            *(who, self.number, self._silent_pid, silence.silent_s, silence.activity),
            extra={"told_by": "TrainerDied"},
        )

    def _as_silent(self, silence: Silence) -> m.TrainerSilent:
        told = msgspec.structs.asdict(silence)
        return m.TrainerSilent(incarnation=self.number, rank=self._silent_rank, **told)

    def _stopped(self, now: float) -> tuple[int, Silence] | None:  # noqa: ARG002 - for several that train together
        """Return the rank that a signal has stopped for too long, and how long; None if there is none."""
        return None

    def _behind(self) -> int:
        """Return the rank that all others wait for; 0 if it is rank 0, or if there are no others."""
        return 0

    @property
    def _silent_pid(self) -> int:
        """The id of the process that was found silent."""
        return self.pid

    @abstractmethod
    def _cut_off(self) -> None:
        """Make it end, whatever it does."""

    @abstractmethod
    def _state(self) -> str:
        """Return why it may not end, in a few words."""

    @abstractmethod
    async def _take_stacks(self) -> str:
        """Return the stacks of its threads, as far as they can be had."""

    @abstractmethod
    def _end(self, stacks: str) -> m.TrainerGone:
        """Release what belongs to it, and return how it ended. Called once, after it has ended."""


class Incarnation(RunningTrainer):
    """A running trainer process."""

    def __init__(
        self,
        number: int,
        setup: TrainerSetup,
        recorder: Recorder,
        printed: str = "",
        started: StartedTrainer | None = None,
    ) -> None:
        """Start the process, or take over one that waited. Raises OSError, and then releases all that it had opened."""
        super().__init__(number, setup.timeouts, recorder)
        self.printed = printed
        self._run_dir = setup.run_dir
        self._oom_before = oom_kill_count()
        self._started = started = started or StartedTrainer(number, setup, printed)
        self._page, self._child = started.page, started.child
        self._output = OutputCapture(started.reader, setup.sinks)
        self._members: Members | None = None
        if started.others:
            self._members = Members(self._child, started.others, setup.sinks)
            self._members.watch(self._end_now, self._gone.set)
        else:
            asyncio.get_running_loop().add_reader(self._child.pidfd, self._note_end)
        spawned = m.TrainerSpawned(
            incarnation=number, pid=self._child.pid, start_ticks=self._child.start_ticks, boot_id=boot_id()
        )
        recorder.attach(started.end, spawned)

    @property
    def pid(self) -> int:
        """The trainer's process id."""
        return self._child.pid

    def _cut_off(self) -> None:
        if self._members is not None:
            self._members.kill()
        else:
            self._child.kill_group()

    def _stopped(self, now: float) -> tuple[int, Silence] | None:
        return self._members.stopped(now) if self._members is not None else None

    def _behind(self) -> int:
        # The trainer may have overwritten the page with any value.
        found = self._page.behind if self._members is not None else 0
        return found if found in range(len(self._started.others) + 1) else 0

    @property
    def _silent_pid(self) -> int:
        return self._silent_child.pid

    @property
    def _silent_child(self) -> ChildProcess:
        return self._child if self._members is None else self._members.child(self._silent_rank)

    def _state(self) -> str:
        return wait_channel(self.pid)

    def _note_end(self) -> None:
        # The pidfd stays readable from now on and would call this again and again.
        asyncio.get_running_loop().remove_reader(self._child.pidfd)
        self._gone.set()

    async def _take_stacks(self) -> str:
        """Make the faulthandler of the silent process write the stacks of all threads, and read them."""
        child, name = self._silent_child, stacks_name(self._silent_rank)
        if not catches(child.pid, STACKS):
            return ""
        before = await loop_files.in_thread(_size, self._run_dir, name)
        child.send(STACKS)
        return await _read_added(self._run_dir, name, before, self._timeouts.stacks_s)

    def _end(self, stacks: str) -> m.TrainerGone:
        exit_ = self._child.reap()
        if exit_ is None:
            raise ChildProcessError(f"the pidfd of process {self.pid} is readable, but the process still runs")
        cause = Cause(0, self.pid, exit_, self._output.finish(), was_killed=bool(self._ended_ns))
        if self._members is not None:
            cause = self._members.reap(exit_, cause.output)
        if self._hung:
            cause = cause._replace(rank=self._silent_rank, pid=self._silent_pid)
        exit_, output = cause.exit, cause.output
        self.printed = mark_of(output) or self.printed
        self._started.close()
        oom_now = oom_kill_count()
        oom_kills = None if oom_now is None or self._oom_before is None else oom_now - self._oom_before
        evidence = Evidence(hung=self._hung, killed_by_us=cause.was_killed, oom_kills=oom_kills, output=output)
        reason = death_reason(exit_, evidence)
        how = exit_.signal_name or f"exit code {exit_.code}"
        _log.log(
            logging.INFO if exit_.code == 0 else logging.WARNING,
            "Trainer %d (pid %d) has ended: %s, %s",
            *(self.number, cause.pid, reason.value, how),
            extra={"told_by": "TrainerEnded" if exit_.code == 0 else "TrainerDied"},
        )
        return m.TrainerGone(
            incarnation=self.number,
            reason=reason,
            pid=cause.pid,
            exit_code=exit_.code,
            signal=exit_.signal_name,
            output=output,
            stacks=stacks,
            rank=cause.rank,
        )


def stacks_name(rank: int) -> str:
    """Return the file of a run into which the trainer, or another rank of it, writes its stacks."""
    return f"logs/trainer{f'-{rank}' if rank else ''}.stacks"


def _size(run_dir: Path, name: str) -> int:
    try:
        return (run_dir / name).stat().st_size
    except FileNotFoundError:
        return 0


async def _read_added(run_dir: Path, name: str, before: int, timeout_s: float) -> str:
    """Return what is appended to the file of stacks. Wait until it stops growing, at most `timeout_s`."""
    size, deadline = before, time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        await asyncio.sleep(0.05)
        now = await loop_files.in_thread(_size, run_dir, name)
        if now == size > before:
            break
        size = now
    return await _read_tail(run_dir, name, before)


async def _read_tail(run_dir: Path, name: str, before: int) -> str:
    try:
        added = await loop_files.read_run_file(run_dir, name, _STACKS_BYTES_MAX, before)
    except (FileNotFoundError, run_files.UnsafeFile):
        return ""
    return added.decode("utf-8", "replace")
