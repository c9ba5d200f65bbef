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

    `ring`: the descriptor of the snapshot arena, which every trainer of this daemon inherits. `ranks`: the processes
    that train together.
    """

    run_dir: Path
    command: tuple[str, ...]
    environment: Mapping[str, str]
    sinks: tuple[Sink, ...] = ()
    timeouts: Timeouts = Timeouts()
    ring: int | None = None
    ranks: int = 1

    def command_line(self, incarnation: int, channel: int, page: int, printed: str = "") -> tuple[str, ...]:
        """Return the complete command line. `printed`: the mark of the traceback that an earlier trainer printed."""
        added: dict[str, int | str] = {"--incarnation": incarnation, "--channel-fd": channel, "--page-fd": page}
        added["--parent-pid"] = os.getpid()
        if self.ring is not None:
            added["--ring-fd"] = self.ring
        if printed:
            added["--printed"] = printed
        if self.ranks > 1:
            added |= self._of_rank(incarnation, 0)
        return (*self.command, *(str(word) for pair in added.items() for word in pair))

    def command_of_rank(self, incarnation: int, rank: int, printed: str) -> tuple[str, ...]:
        """Return the complete command line of a rank that is not 0. It has no channel: rank 0 leads it."""
        added = {"--parent-pid": os.getpid(), **self._of_rank(incarnation, rank)}
        if printed:
            added["--printed"] = printed
        return (*self.command, *(str(word) for pair in added.items() for word in pair))

    def _of_rank(self, incarnation: int, rank: int) -> dict[str, int | str]:
        # Another start has another name, so that nobody joins a group that has ended.
        return {"--rank": rank, "--ranks": self.ranks, "--group": f"{os.getpid()}/{incarnation}"}


class StartedRank:
    """The process of a rank that is not 0."""

    def __init__(self, rank: int, setup: TrainerSetup, command: tuple[str, ...], passed: tuple[int, ...]) -> None:
        """Start the process. `passed`: its descriptors. Raises OSError."""
        self.rank = rank
        self.reader, writer = os.pipe()
        try:
            self.child = ChildProcess.spawn(command, child_environment(setup.environment), writer, passed)
        except OSError:
            os.close(self.reader)
            raise
        finally:
            os.close(writer)

    def abandon(self) -> None:
        """Kill a process of a group that cannot be started as a whole, and reap it."""
        self.child.kill_group()
        os.waitid(os.P_PIDFD, self.child.pidfd, os.WEXITED | os.WNOWAIT)
        self.child.reap()
        os.close(self.reader)


class StartedTrainer:
    """The process of trainer `number`, and the daemon's ends of what connects it."""

    def __init__(self, number: int, setup: TrainerSetup, printed: str = "", *, waits: Waits | None = None) -> None:
        """Start the process. Raises OSError if that fails, and releases everything it had opened.

        `printed`: the mark of the traceback that an earlier trainer printed. `waits`: it is a spare, and how far it
        gets before it waits.
        """
        self.number = number
        # A socket to each process, if they wait.
        self._spare: tuple[socket.socket, ...] = ()
        self._silent: set[socket.socket] = set()
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
            ends = [self._waiting(undo, handed_over) for _ in range(setup.ranks)] if waits is not None else []
            words: list[tuple[str, ...]] = [("--spare", str(waits), "--spare-fd", str(one)) for one in ends]
            words = words or [()] * setup.ranks
            others = []
            for rank in range(1, setup.ranks):
                its_command = (*setup.command_of_rank(number, rank, printed), *words[rank])
                others.append(StartedRank(rank, setup, its_command, tuple(ends[rank : rank + 1])))
                undo.callback(others[-1].abandon)
            self.others = tuple(others)
            passed += ends[:1]
            command = (*command, *words[0])
            self.child = ChildProcess.spawn(command, child_environment(setup.environment), writer, tuple(passed))
            undo.pop_all()

    def _waiting(self, undo: contextlib.ExitStack, handed_over: contextlib.ExitStack) -> int:
        """Make a pair of sockets for a process that waits. Return the descriptor of its end."""
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        undo.callback(ours.close)
        handed_over.callback(its.close)
        ours.setblocking(False)
        self._spare = (*self._spare, ours)
        self._silent.add(ours)
        return its.fileno()

    def said_ready(self) -> bool:
        """Return whether a spare has said by now that it has imported everything."""
        for one in tuple(self._silent):
            with contextlib.suppress(OSError):
                if one.recv(1) == READY:
                    self._silent.discard(one)
        return not self._silent

    def go(self, printed: str) -> None:
        """Let a spare become the trainer. Raises OSError if it has ended."""
        for one in self._spare:
            one.send(GO + printed.encode())
        # One that still imports gave way to a trainer that is gone. On a busy machine it would take many times as long.
        for child in self._children:
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, child.pid, os.getpriority(os.PRIO_PROCESS, 0))

    def release(self) -> None:
        """Reap a spare that has ended, and close what belongs to it."""
        if self.child.reap() is None:
            raise ChildProcessError(f"process {self.child.pid} still runs")
        for other in self.others:
            other.abandon()
        os.close(self.reader)
        self.end.close()
        self.close()

    def close(self) -> None:
        """Close what a trainer that has ended leaves. Closed earlier, the socket would lose what a spare is told."""
        self.page.close()
        for one in self._spare:
            one.close()

    def kill(self) -> None:
        """Kill the processes of a spare."""
        for child in self._children:
            child.kill_group()

    @property
    def pids(self) -> tuple[int, ...]:
        """The ids of its processes, by rank."""
        return tuple(child.pid for child in self._children)

    @property
    def _children(self) -> tuple[ChildProcess, ...]:
        return (self.child, *(one.child for one in self.others))
