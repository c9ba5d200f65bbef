"""The other ranks of a trainer: processes that train together with it, and live and end with it.

Promises: the trainer counts as gone when all of them are reaped. The first rank that ended by itself is the cause, and
not those that ended because of it. A rank that is stopped by a signal is found within seconds.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Final, NamedTuple

from tolariad.core.calc.run.exits import EXIT_TRY_AGAIN
from tolariad.supervisor.hang import Silence
from tolariad.supervisor.output import OutputCapture, Sink
from tolariad.supervisor.process import ChildProcess, Exit
from tolariad.supervisor.procfs import process_stat
from tolariad.supervisor.started import StartedRank

# A process may be stopped for a moment, by a debugger or a snapshot of the machine.
STOPPED_S: Final = 5.0
# A rank that ended with an exception has told rank 0, which reports it and ends: within this time.
FOLLOWS_S: Final = 10.0


class Cause(NamedTuple):
    """The rank that ended first by itself. `was_killed`: none did, all were killed by us."""

    rank: int
    pid: int
    exit: Exit
    output: str
    was_killed: bool


class Members:
    """All ranks of one trainer, from the start to the end. It belongs to the event loop."""

    def __init__(self, leader: ChildProcess, others: tuple[StartedRank, ...], sinks: tuple[Sink, ...]) -> None:
        """`leader`: rank 0."""
        self._children = {0: leader, **{one.rank: one.child for one in others}}
        self._outputs = {one.rank: OutputCapture(one.reader, _marked(one.rank, sinks)) for one in others}
        # The ranks that have ended, in the order in which that was noted, and those that were killed while they ran.
        self._ended: list[int] = []
        self._killed: set[int] = set()
        self._stopped: dict[int, float] = {}
        self._is_ending = False
        self._end: Callable[[], None] = lambda: None
        self._are_gone: Callable[[], None] = lambda: None

    def watch(self, end: Callable[[], None], are_gone: Callable[[], None]) -> None:
        """Note the end of each. Call `end`, which kills the others, after the first, and `are_gone` after the last."""
        self._end, self._are_gone = end, are_gone
        for rank, child in self._children.items():
            asyncio.get_running_loop().add_reader(child.pidfd, self._note, rank)

    def _note(self, rank: int) -> None:
        loop, child = asyncio.get_running_loop(), self._children[rank]
        loop.remove_reader(child.pidfd)
        self._ended.append(rank)
        if len(self._ended) == len(self._children):
            self._are_gone()
        elif rank == 0 or _exit_seen(child).code in (None, EXIT_TRY_AGAIN):
            self._end_once()
        else:
            loop.call_later(FOLLOWS_S, self._end_once)

    def _end_once(self) -> None:
        if not self._is_ending and len(self._ended) < len(self._children):
            self._is_ending = True
            self._end()

    def kill(self) -> None:
        """Kill all that still run."""
        for rank, child in self._children.items():
            if rank in self._ended:
                continue
            if not _has_ended(child):
                self._killed.add(rank)
                child.kill_group()

    def stopped(self, now: float) -> tuple[int, Silence] | None:
        """Return a rank that a signal has stopped for too long, with how long; None if there is none."""
        for rank, child in self._children.items():
            stat = process_stat(child.pid) if rank not in self._ended else None
            if stat is None or stat.state != "T":
                self._stopped.pop(rank, None)
                continue
            silent_s = now - self._stopped.setdefault(rank, now)
            if silent_s >= STOPPED_S:
                return rank, Silence(activity="stopped", silent_s=silent_s, limit_s=STOPPED_S)
        return None

    def child(self, rank: int) -> ChildProcess:
        """Return the process of a rank. Raises KeyError."""
        return self._children[rank]

    def reap(self, leader: Exit, output: str) -> Cause:
        """Reap all but rank 0, and return what ended them. `leader`, `output`: how rank 0 has ended, its output."""
        exits, outputs = {0: leader}, {0: output}
        for rank, capture in self._outputs.items():
            found = self._children[rank].reap()
            if found is None:
                raise ChildProcessError(f"process {self._children[rank].pid} of rank {rank} still runs")
            exits[rank], outputs[rank] = found, capture.finish()
        first = cause_of(exits, self._ended, self._killed)
        return Cause(first, self._children[first].pid, exits[first], outputs[first], was_killed=first in self._killed)


def cause_of(exits: dict[int, Exit], order: list[int], killed: set[int]) -> int:
    """Return the rank whose end led to those of the others.

    `order`: as they were noted. `killed`: those that we have killed. A signal comes first: what others raise because of
    it may be noted earlier. Then an end with an exception, or any other code but that of a rank that has lost another.
    """
    own = [rank for rank in order if rank not in killed]
    by_signal = [rank for rank in own if exits[rank].signal_number is not None]
    by_itself = [rank for rank in own if exits[rank].code not in (None, 0, EXIT_TRY_AGAIN)]
    return next(iter([*by_signal, *by_itself]), 0)


def _has_ended(child: ChildProcess) -> bool:
    return os.waitid(os.P_PIDFD, child.pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _exit_seen(child: ChildProcess) -> Exit:
    """Return how a process has ended, and leave it to be reaped."""
    info = os.waitid(os.P_PIDFD, child.pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if info is None or info.si_code != os.CLD_EXITED:
        return Exit(signal_number=signal.SIGKILL if info is None else info.si_status)
    return Exit(code=info.si_status)


def _marked(rank: int, sinks: tuple[Sink, ...]) -> tuple[Sink, ...]:
    """Return the sinks with the rank before each line."""
    prefix = f"rank {rank}: ".encode()

    def marking(sink: Sink) -> Sink:
        return lambda lines: sink(b"".join(prefix + line for line in lines.splitlines(keepends=True)))

    return tuple(marking(sink) for sink in sinks)
