"""A trainer's process as it is started: with a channel and a page of its own, and its output in a pipe.

One that waits is a spare: it imports torch, says so over a socket, and becomes the trainer when it is told.
"""

from __future__ import annotations

import contextlib
import os
import socket
from typing import TYPE_CHECKING, Final

from tolariad.channel import DaemonEnd, Page, channel_pair
from tolariad.supervisor.process import ChildProcess, child_environment

if TYPE_CHECKING:
    from tolariad.supervisor.incarnation import TrainerSetup

# What a spare says when it has imported everything, and what it is told before the mark of a printed traceback.
READY: Final = b"r"
GO: Final = b"g"


class StartedTrainer:
    """The process of trainer `number`, and the daemon's ends of what connects it."""

    def __init__(self, number: int, setup: TrainerSetup, printed: str = "", *, waits: bool = False) -> None:
        """Start the process. Raises OSError if that fails, and releases everything it had opened.

        `printed`: the mark of the traceback that an earlier trainer printed. `waits`: it is a spare.
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
            if waits:
                self._spare, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                undo.callback(self._spare.close)
                handed_over.callback(its.close)
                self._spare.setblocking(False)
                command = (*command, "--spare-fd", str(its.fileno()))
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
