"""One child process with a socket to it, from its start to its end: bytes, output, stacks.

Promises: nothing here waits for the process without the caller's deadline. When it ends, its whole process group is
killed. Its output costs the loop and the log a bounded share, however much it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import time
from collections.abc import Mapping
from typing import Final

import msgspec

from tolariad.signals import STACKS
from tolariad.supervisor.output import OutputCapture, Sink
from tolariad.supervisor.process import ChildProcess, Exit, Session, child_environment
from tolariad.supervisor.procfs import catches, wait_channel

_log: Final = logging.getLogger(__name__)

_READ_BYTES: Final = 64 * 1024
# At most 64 KiB are read every 20 ms: a flood of 3 MB/s costs the loop about one percent of its time.
_OUTPUT_PAUSE_S: Final = 0.02
_STACKS_CHARS: Final = 2_000
_THREAD: Final = "(most recent call first):"
# A connection ends a moment before its process is known to have ended, which says more.
_END_S: Final = 0.5


class PeerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Every wait and bound, in one place so that tests can shorten them.

    * `stacks_s`: the time between the request for stacks and SIGKILL.
    * `kill_s`: the time after which a killed process that has not ended is logged, again and again.
    * `log_bytes`: the output that the log takes in `log_window_s`.
    """

    stacks_s: float = 0.2
    kill_s: float = 30.0
    log_bytes: int = 64 * 1024
    log_window_s: float = 60.0


class PeerFailed(Exception):
    """The process cannot be talked to any more. The text is a clause that follows its name."""


class PeerProcess:
    """A process of ours. It belongs to the event loop in which it is created.

    `name` says what the process is, in messages and in the log.
    """

    def __init__(
        self,
        name: str,
        command: tuple[str, ...],
        environment: Mapping[str, str],
        sinks: tuple[Sink, ...],
        limits: PeerLimits,
        *,
        session: Session = Session.OWN,
    ) -> None:
        """Start the process. Its command gets `--socket-fd` and `--parent-pid`.

        Raises OSError if that fails, and releases everything it had opened.
        """
        self._name = name
        self._peer_limits = limits
        self._loop = asyncio.get_running_loop()
        self._gone = asyncio.Event()
        self._buffer = bytearray()
        self._exit: Exit | None = None
        with contextlib.ExitStack() as undo, contextlib.ExitStack() as handed_over:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
            undo.callback(ours.close)
            handed_over.callback(theirs.close)
            ours.setblocking(False)
            reader, writer = os.pipe()
            undo.callback(os.close, reader)
            handed_over.callback(os.close, writer)
            words = (*command, "--socket-fd", str(theirs.fileno()), "--parent-pid", str(os.getpid()))
            started = child_environment(environment)
            self._child = ChildProcess.spawn(words, started, writer, (theirs.fileno(),), session)
            undo.pop_all()
        self._socket = ours
        self._allowance = Allowance(name, sinks, limits.log_bytes, limits.log_window_s)
        self._output = OutputCapture(reader, (self._allowance.write,), pause_s=_OUTPUT_PAUSE_S)
        self._loop.add_reader(self._child.pidfd, self._note_end)

    @property
    def pid(self) -> int:
        """The id of the process, and of its process group."""
        return self._child.pid

    async def send(self, data: bytes) -> None:
        """Send bytes. If the process has ended or has closed its side, what it said before is still to be read."""
        with contextlib.suppress(OSError):
            await self._loop.sock_sendall(self._socket, data)

    async def receive(self, count: int) -> bytes:
        """Return the next `count` bytes. Raises PeerFailed if the connection ends before."""
        while len(self._buffer) < count:
            try:
                piece, why = await self._loop.sock_recv(self._socket, _READ_BYTES), "closed its connection too early"
            except OSError as error:
                piece, why = b"", f"cannot be reached: {error}"
            if not piece:
                raise PeerFailed(self.how if await self.gone_within(_END_S) else why)
            self._buffer += piece
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        return taken

    def _note_end(self) -> None:
        # The pidfd stays readable from now on and would call this again and again.
        self._loop.remove_reader(self._child.pidfd)
        self._exit = self._child.reap()
        self._gone.set()
        # A child of the process may hold the other side open; nobody may wait for that.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def pause(self) -> None:
        """Stop the process until `resume`. A no-op if it has ended."""
        if not self._gone.is_set():
            self._child.send(signal.SIGSTOP)

    def resume(self) -> None:
        """Let the process continue. A no-op if it has ended."""
        if not self._gone.is_set():
            self._child.send(signal.SIGCONT)

    async def gone(self) -> None:
        """Wait until the process has ended by itself, or was killed."""
        await self._gone.wait()

    async def gone_within(self, seconds: float) -> bool:
        """Return whether the process has ended; wait for it at most so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._gone.wait()
        return self._gone.is_set()

    async def kill_with_stacks(self) -> None:
        """Make a process that does not answer write its stacks to the log, and kill it."""
        if not self._gone.is_set() and catches(self.pid, STACKS):
            self._child.send(STACKS)
            await self.gone_within(self._peer_limits.stacks_s)
        self.kill()

    def kill(self) -> None:
        """Kill the process and its children. A no-op if it has ended."""
        if not self._gone.is_set():
            self._child.kill_group()

    async def end(self) -> str:
        """Kill it, wait until it is reaped, release everything, and return how it ended and the end of its output."""
        self.kill()
        while not await self.gone_within(self._peer_limits.kill_s):
            _log.error("The process %d of the %s (%s) does not end. No other one is started.", *self._stuck())
        # An open request must see the end of the connection first: after the socket is closed, it would wait for ever.
        await asyncio.sleep(0)
        self._socket.close()
        output = self._output.finish()
        self._allowance.close()
        return output

    def _stuck(self) -> tuple[int, str, str]:
        return self.pid, self._name, wait_channel(self.pid)

    @property
    def how(self) -> str:
        """How it ended, as a clause; "" while it runs."""
        if self._exit is None:
            return ""
        if self._exit.signal_name:
            return f"was ended by {self._exit.signal_name}"
        return f"ended with exit code {self._exit.code}"


def stacks_in(output: str) -> str:
    """Return the stacks that the process wrote last, or "" if there are none."""
    begin = output.rfind(_THREAD)
    if begin < 0:
        return ""
    first = output.rfind("\n", 0, begin) + 1
    return output[first:][:_STACKS_CHARS].strip()


class Allowance:
    """Passes lines on with a prefix, up to a number of bytes in each window of time, and says how much it left out."""

    def __init__(self, name: str, sinks: tuple[Sink, ...], bytes_max: int, window_s: float) -> None:
        """`name`: stands before each line."""
        self._prefix = f"{name}: ".encode()
        self._sinks = sinks
        self._bytes_max, self._window_s = bytes_max, window_s
        self._began = time.monotonic()
        self._used = 0
        self._left_out = 0

    def write(self, lines: bytes) -> None:
        """Pass on complete lines, as many as fit."""
        if time.monotonic() >= self._began + self._window_s:
            self._tell()
            self._began, self._used = time.monotonic(), 0
        fits = lines[: max(0, self._bytes_max - self._used)]
        # Whole lines only, so that no line of the log is a half one.
        fits = lines if len(fits) == len(lines) else fits[: fits.rfind(b"\n") + 1]
        self._used += len(lines)
        self._left_out += len(lines) - len(fits)
        if fits:
            self._put(b"".join(self._prefix + line for line in fits.splitlines(keepends=True)))

    def close(self) -> None:
        """Say how much was left out since the last line."""
        self._tell()

    def _tell(self) -> None:
        if self._left_out:
            self._put(self._prefix + f"[{self._left_out} bytes of its output were left out here]\n".encode())
            self._left_out = 0

    def _put(self, lines: bytes) -> None:
        for sink in self._sinks:
            sink(lines)
