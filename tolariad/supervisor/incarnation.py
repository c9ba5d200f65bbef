"""One trainer from its start to its end: channel, process, output, heartbeat, and at last what ended it.

Promises: the death is told once, after the process is reaped and all of its group is ended; a hung trainer's stacks are
taken before it is killed; one that survives SIGKILL is said to be stuck, and waited for. It must not know: whether it is
started again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol

import msgspec

from tolariad.channel import DaemonEnd, Heartbeat, Page, channel_pair
from tolariad.core.inputs import Input, TrainerGone, TrainerSilent, TrainerSpawned, TrainerStuck
from tolariad.core.vocabulary.trainer import DeathReason
from tolariad.supervisor.death import Evidence, death_reason
from tolariad.supervisor.hang import HangLimits, HangMonitor, Silence
from tolariad.supervisor.output import OutputCapture, Sink
from tolariad.supervisor.process import ChildProcess, child_environment
from tolariad.supervisor.procfs import boot_id, oom_kill_count, wait_channel

_log: Final = logging.getLogger(__name__)

_STACKS_BYTES_MAX: Final = 64 * 1024
STACKS_NAME: Final = "trainer.stacks"


class Recorder(Protocol):
    """The kernel, as far as a trainer's life is told to it."""

    def attach(self, end: DaemonEnd, spawned: TrainerSpawned) -> None:
        """Record that a trainer exists and take over the daemon's end of its channel."""

    def submit(self, given: Input) -> None:
        """Record an input; never waits."""


class Timeouts(msgspec.Struct, frozen=True, kw_only=True):
    """Every waiting time of the supervisor, in one place so that tests can be quick."""

    hang: HangLimits = HangLimits()
    poll_s: float = 0.25
    stacks_s: float = 2.0
    kill_s: float = 30.0
    lock_poll_s: float = 0.02


class TrainerSetup(msgspec.Struct, frozen=True, kw_only=True):
    """How trainers of this run are started; `command` gets incarnation, descriptors and parent pid appended.

    `ring`: the descriptor of the memory that snapshots lie in, for every trainer of this daemon.
    """

    run_dir: Path
    command: tuple[str, ...]
    environment: Mapping[str, str]
    sinks: tuple[Sink, ...] = ()
    timeouts: Timeouts = Timeouts()
    ring: int | None = None

    def command_line(self, incarnation: int, channel: int, page: int) -> tuple[str, ...]:
        """The whole command."""
        added = {"--incarnation": incarnation, "--channel-fd": channel, "--page-fd": page, "--parent-pid": os.getpid()}
        if self.ring is not None:
            added["--ring-fd"] = self.ring
        return (*self.command, *(str(word) for pair in added.items() for word in pair))


class PageView:
    """What a trainer's page shows of it, whether it is a process or a thread; any thread may ask. And how it is watched."""

    _page: Page
    _gone: asyncio.Event
    _monitor: HangMonitor

    @property
    def heartbeat(self) -> Heartbeat | None:
        """Its last sign of life; None where the page holds nonsense (a trainer that writes where it must not)."""
        try:
            return self._page.heartbeat
        except ValueError:
            return None

    @property
    def waiting(self) -> bool:
        """Whether it stands at a closed gate."""
        try:
            return self._page.waiting
        except ValueError:
            return False

    async def _gone_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._gone.wait()
        except TimeoutError:
            return False
        return True

    def _silence(self) -> Silence | None:
        beat = self.heartbeat
        return None if beat is None else self._monitor.check(beat, time.monotonic_ns())


class Incarnation(PageView):
    """The living trainer. Made and used on the loop of the main thread."""

    def __init__(self, number: int, setup: TrainerSetup, recorder: Recorder) -> None:
        """Start it. Raises OSError where no process can be made; nothing is left then."""
        self.number = number
        self._setup = setup
        self._recorder = recorder
        self._killed_ns = 0
        self._hung = False
        self._gone = asyncio.Event()
        self._oom_before = oom_kill_count()
        with contextlib.ExitStack() as undo, contextlib.ExitStack() as handed_over:
            end, theirs = channel_pair(number)
            undo.callback(end.close)
            handed_over.callback(theirs.close)
            # A mapping of our own: the kernel thread closes its one when it is done with the channel.
            self._page = Page.attach(os.dup(end.page.descriptor))
            undo.callback(self._page.close)
            reader, writer = os.pipe()
            undo.callback(os.close, reader)
            handed_over.callback(os.close, writer)
            command = setup.command_line(number, theirs.fileno(), end.page.descriptor)
            passed = (theirs.fileno(), end.page.descriptor, *(() if setup.ring is None else (setup.ring,)))
            self._child = ChildProcess.spawn(command, child_environment(setup.environment), writer, passed)
            undo.pop_all()
        self._output = OutputCapture(reader, setup.sinks)
        self._monitor = HangMonitor(setup.timeouts.hang, time.monotonic_ns())
        asyncio.get_running_loop().add_reader(self._child.pidfd, self._note_end)
        spawned = TrainerSpawned(
            incarnation=number, pid=self._child.pid, start_ticks=self._child.start_ticks, boot_id=boot_id()
        )
        recorder.attach(end, spawned)

    @property
    def pid(self) -> int:
        """The trainer's process number."""
        return self._child.pid

    def kill(self, why: str) -> None:
        """SIGKILL for it and all it started. One that is hung is ended already, after its stacks."""
        if self._hung or self._gone.is_set():
            return
        _log.info("trainer %d (pid %d) is ended: %s", self.number, self.pid, why)
        self._kill_now()

    def _kill_now(self) -> None:
        self._killed_ns = self._killed_ns or time.monotonic_ns()
        self._child.kill_group()

    def _note_end(self) -> None:
        # The descriptor stays readable from now on: once is enough.
        asyncio.get_running_loop().remove_reader(self._child.pidfd)
        self._gone.set()

    async def run(self) -> None:
        """Watch it to its end, then tell what ended it."""
        stacks = ""
        said_stuck = False
        while not await self._gone_within(self._setup.timeouts.poll_s):
            if self._killed_ns:
                if not said_stuck:
                    said_stuck = self._say_if_stuck()
            elif silence := self._silence():
                stacks = await self._take_stacks(silence)
                self._kill_now()
        self._tell(stacks)

    def _say_if_stuck(self) -> bool:
        waited_s = (time.monotonic_ns() - self._killed_ns) / 1e9
        if waited_s < self._setup.timeouts.kill_s:
            return False
        state = wait_channel(self.pid)
        _log.error("trainer %d (pid %d, state %s) cannot be killed", self.number, self.pid, state)
        stuck = TrainerStuck(incarnation=self.number, pid=self.pid, state=state, waited_s=waited_s)
        self._recorder.submit(stuck)
        return True

    async def _take_stacks(self, silence: Silence) -> str:
        """Record the hang, then ask the trainer's faulthandler where every thread stands."""
        self._hung = True
        self._recorder.submit(
            TrainerSilent(
                incarnation=self.number,
                activity=silence.activity,
                silent_s=silence.silent_s,
                limit_s=silence.limit_s,
            )
        )
        _log.error(
            "trainer %d (pid %d) has not moved for %.0f s in %s; it is ended",
            self.number,
            self.pid,
            silence.silent_s,
            silence.activity,
        )
        file = self._setup.run_dir / "logs" / STACKS_NAME
        if not _catches(self.pid, signal.SIGUSR2):
            return ""
        before = _size(file)
        self._child.send(signal.SIGUSR2)
        return await _what_was_added(file, before, self._setup.timeouts.stacks_s)

    def _tell(self, stacks: str) -> None:
        exit_ = self._child.reap()
        if exit_ is None:
            raise ChildProcessError(f"process {self.pid} is said to be gone and still runs")
        output = self._output.finish()
        self._page.close()
        oom_now = oom_kill_count()
        oom_kills = None if oom_now is None or self._oom_before is None else oom_now - self._oom_before
        evidence = Evidence(hung=self._hung, killed_by_us=bool(self._killed_ns), oom_kills=oom_kills, output=output)
        reason = death_reason(exit_, evidence)
        how = exit_.signal_name or f"exit code {exit_.code}"
        _log.log(
            logging.INFO if exit_.code == 0 else logging.WARNING,
            "trainer %d (pid %d) has ended: %s, %s",
            *(self.number, self.pid, reason.value, how),
        )
        self._recorder.submit(
            TrainerGone(
                incarnation=self.number,
                reason=reason,
                pid=self.pid,
                exit_code=exit_.code,
                signal=exit_.signal_name,
                output=output,
                stacks=stacks,
            )
        )


def not_started(number: int, error: OSError) -> TrainerGone:
    """What is told of a trainer that could not even be started."""
    why = f"the trainer could not be started: {error}"
    return TrainerGone(incarnation=number, reason=DeathReason.EXIT, output=why)


def _catches(pid: int, number: signal.Signals) -> bool:
    """Whether the process handles the signal; one that does not would be ended by it, without its stacks."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return False
    caught = next((line.split()[1] for line in lines if line.startswith("SigCgt:")), "0")
    return bool(int(caught, 16) >> (number - 1) & 1)


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


async def _what_was_added(file: Path, before: int, timeout_s: float) -> str:
    """What the file gains until it stands still, within the time-out: a stopped process never writes."""
    size, deadline = before, time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        await asyncio.sleep(0.05)
        now = _size(file)
        if now == size > before:
            break
        size = now
    return _read_tail(file, before)


def _read_tail(file: Path, before: int) -> str:
    try:
        with file.open("rb") as opened:
            opened.seek(before)
            return opened.read(_STACKS_BYTES_MAX).decode("utf-8", "replace")
    except FileNotFoundError:
        return ""
