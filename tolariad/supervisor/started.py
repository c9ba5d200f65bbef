"""A trainer's process as it is started: with a channel and a page of its own, and its output in a pipe.

One that waits is a spare: it imports torch, may build the task, says so over a socket, and becomes the trainer when it
is told.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal, TypeAlias

import msgspec

from tolariad.channel import DaemonEnd, Page, channel_pair
from tolariad.supervisor.hang import HangLimits
from tolariad.supervisor.output import Sink
from tolariad.supervisor.process import ChildProcess, child_environment

# What a spare says when it has imported everything, and what it is told before the mark of a printed traceback.
READY: Final = b"r"
GO: Final = b"g"
# What a spare does before it waits.
Waits: TypeAlias = Literal["imported", "built"]


class Timeouts(msgspec.Struct, frozen=True, kw_only=True):
    """Every wait of the supervisor, in one place so that tests can shorten them."""

    hang: HangLimits = HangLimits()
    poll_s: float = 0.25
    stacks_s: float = 2.0
    kill_s: float = 30.0
    lock_poll_s: float = 0.02


class TrainerSetup(msgspec.Struct, frozen=True, kw_only=True):
    """How trainers of this run are started. Incarnation, descriptors and parent pid are appended to `command`.

    `ring`: the descriptor of the snapshot arena, which every trainer of this daemon inherits.
    """

    run_dir: Path
    command: tuple[str, ...]
    environment: Mapping[str, str]
    sinks: tuple[Sink, ...] = ()
    timeouts: Timeouts = Timeouts()
    ring: int | None = None

    def command_line(self, incarnation: int, channel: int, page: int, printed: str = "") -> tuple[str, ...]:
        """Return the complete command line. `printed`: the mark of the traceback that an earlier trainer printed."""
        added: dict[str, int | str] = {"--incarnation": incarnation, "--channel-fd": channel, "--page-fd": page}
        added["--parent-pid"] = os.getpid()
        if self.ring is not None:
            added["--ring-fd"] = self.ring
        if printed:
            added["--printed"] = printed
        return (*self.command, *(str(word) for pair in added.items() for word in pair))


class StartedTrainer:
    """The process of trainer `number`, and the daemon's ends of what connects it."""

    def __init__(self, number: int, setup: TrainerSetup, printed: str = "", *, waits: Waits | None = None) -> None:
        """Start the process. Raises OSError if that fails, and releases everything it had opened.

        `printed`: the mark of the traceback that an earlier trainer printed. `waits`: it is a spare, and how far it
        gets before it waits.
        """
        self.number = number
        self._spare: socket.socket | None = None
        with contextlib.ExitStack() as undo, contextlib.ExitStack() as handed_over:
            self.end: DaemonEnd
            self.end, theirs = channel_pair(number)
            undo.callback(self.end.close)
            handed_over.callback(theirs.close)
            # A second mapping: the kernel's thread closes the first one together with the channel.
            self.page = Page.attach(os.dup(self.end.page.descriptor))
            undo.callback(self.page.close)
            self.reader, writer = os.pipe()
            undo.callback(os.close, self.reader)
            handed_over.callback(os.close, writer)
            command = setup.command_line(number, theirs.fileno(), self.end.page.descriptor, printed)
            passed = [theirs.fileno(), self.end.page.descriptor, *(() if setup.ring is None else (setup.ring,))]
            if waits is not None:
                self._spare, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                undo.callback(self._spare.close)
                handed_over.callback(its.close)
                self._spare.setblocking(False)
                command = (*command, "--spare", waits, "--spare-fd", str(its.fileno()))
                passed.append(its.fileno())
            self.child = ChildProcess.spawn(command, child_environment(setup.environment), writer, tuple(passed))
            undo.pop_all()

    def said_ready(self) -> bool:
        """Return whether a spare has said now that it has imported everything."""
        with contextlib.suppress(OSError):
            return self._spare is not None and self._spare.recv(1) == READY
        return False

    def go(self, printed: str) -> None:
        """Let a spare become the trainer. Raises OSError if it has ended."""
        if self._spare is not None:
            self._spare.send(GO + printed.encode())

    def release(self) -> None:
        """Reap a spare that has ended, and close what belongs to it."""
        if self.child.reap() is None:
            raise ChildProcessError(f"process {self.child.pid} still runs")
        os.close(self.reader)
        self.end.close()
        self.close()

    def close(self) -> None:
        """Close what a trainer that has ended leaves. Closed earlier, the socket would lose what a spare is told."""
        self.page.close()
        if self._spare is not None:
            self._spare.close()
