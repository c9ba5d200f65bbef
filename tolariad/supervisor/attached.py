"""A trainer in a program that has attached itself to this recorder, with the interface of an incarnation.

The program is no child of the recorder. Promises: no signal is ever sent to it, and it has no hang limits: a breakpoint
is no hang. If it dies, that is recorded with its cause, as far as the system tells it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from tolariad.attach import words
from tolariad.attach.link import Link, LinkLost
from tolariad.boot import boot_id
from tolariad.channel import Page, channel_pair
from tolariad.core import messages as m
from tolariad.supervisor.exit_of import exit_of
from tolariad.supervisor.incarnation import Recorder, RunningTrainer
from tolariad.supervisor.process import Evidence, Exit, death_reason
from tolariad.supervisor.procfs import oom_kill_count
from tolariad.supervisor.started import Timeouts

_log: Final = logging.getLogger(__name__)
# The end of the link comes before that of the process: other threads may run for a moment. After this time it lives on,
# because it has become another program, or has let go of its run.
_DYING_S: Final = 1.0
_UNREAD_S: Final = 1.0


class Program:
    """The program at the other end of the link. It belongs to the event loop, and so do all of its methods."""

    def __init__(self, link: Link, pid: int) -> None:
        """Raises OSError if the process has ended."""
        self._link = link
        self.pid = pid
        self._pidfd = os.pidfd_open(pid)
        self._oom_before = oom_kill_count()
        self._unsent: deque[tuple[words.Word, tuple[int, ...]]] = deque()
        self._take: Callable[[words.Word], None] = lambda _: None
        self._gone: Callable[[], None] = lambda: None
        self._loop = asyncio.get_running_loop()
        self._late: asyncio.TimerHandle | None = None
        self.is_gone = False

    def listen(self, take: Callable[[words.Word], None], gone: Callable[[], None]) -> None:
        """Call `take` with each message from now on, and `gone` when the program has ended."""
        self._take, self._gone = take, gone
        self._link.set_blocking(False)
        self._loop.add_reader(self._link.fileno(), self._read)

    def _read(self) -> None:
        with suppress(BlockingIOError):
            while not self.is_gone:
                try:
                    word, descriptors = self._link.receive()
                except LinkLost:
                    self._lose()
                    return
                for one in descriptors:
                    os.close(one)
                self._take(word)

    def _lose(self) -> None:
        """Wait for the end of the process, so that its cause is known."""
        self.is_gone = True
        self._loop.remove_reader(self._link.fileno())
        self._loop.remove_writer(self._link.fileno())
        self._unsent.clear()
        self._late = self._loop.call_later(_DYING_S, self._end)
        self._loop.add_reader(self._pidfd, self._end)

    def _end(self) -> None:
        self._loop.remove_reader(self._pidfd)
        if self._late is not None:
            self._late.cancel()
        self._gone()

    def send(self, word: words.Word, descriptors: tuple[int, ...] = ()) -> None:
        """Send a message; if the program does not read, later. The descriptors are copied."""
        if not self.is_gone:
            self._unsent.append((word, tuple(os.dup(one) for one in descriptors)))
            self._flush()

    def _flush(self) -> None:
        while self._unsent and not self.is_gone:
            word, descriptors = self._unsent[0]
            try:
                self._link.send(word, descriptors)
            except BlockingIOError:
                self._loop.add_writer(self._link.fileno(), self._flush)
                return
            except OSError:
                return  # it is gone, which the reader notices
            self._unsent.popleft()
            for one in descriptors:
                os.close(one)
        self._loop.remove_writer(self._link.fileno())

    def cause(self) -> tuple[Exit | None, int | None]:
        """Return how the process ended, and how many the system has killed for memory since; each None if unknown."""
        now = oom_kill_count()
        kills = None if now is None or self._oom_before is None else now - self._oom_before
        return exit_of(self._pidfd, self.pid), kills

    async def leave(self) -> None:
        """Listen no more. Wait a moment for a program that does not read what was sent to it."""
        give_up = self._loop.time() + _UNREAD_S
        while self._unsent and not self.is_gone and self._loop.time() < give_up:
            await asyncio.sleep(0.01)
            self._flush()
        for number in (self._link.fileno(), self._pidfd):
            self._loop.remove_reader(number)
        self._loop.remove_writer(self._link.fileno())
        if self._late is not None:
            self._late.cancel()
        self._link.set_blocking(True)
        os.close(self._pidfd)


class AttachedIncarnation(RunningTrainer):
    """One trainer in the program. Create and use it on the main thread's event loop."""

    def __init__(
        self, number: int, program: Program, arena: int | None, timeouts: Timeouts, recorder: Recorder
    ) -> None:
        """Hand the program a channel and a page, and tell it to train."""
        super().__init__(number, timeouts, recorder)
        self._program = program
        self._told: words.Ended | None = None
        end, theirs = channel_pair(number)
        # A second mapping, and a second socket: the kernel's thread closes the first ones.
        self._page = Page.attach(os.dup(end.page.descriptor))
        self._ours = socket.socket(fileno=os.dup(end.fileno()))
        passed = (theirs.fileno(), end.page.descriptor, *(() if arena is None else (arena,)))
        # With no start time: so no other daemon of this run ever takes it for a trainer that it may kill.
        recorder.attach(end, m.TrainerSpawned(incarnation=number, pid=program.pid, start_ticks=0, boot_id=boot_id()))
        program.send(words.Train(incarnation=number), passed)
        theirs.close()

    @property
    def pid(self) -> int:
        """The program's process id."""
        return self._program.pid

    async def run(self) -> None:
        """Wait until it has ended, and report how."""
        await self._gone.wait()
        self._recorder.submit(self._end(""))

    def ended(self, told: words.Ended | None) -> None:
        """Take its end: the program's own message, or None if the program is gone."""
        if not self._gone.is_set():
            self._told = told
            self._gone.set()

    def _cut_off(self) -> None:
        """Close this end of its channel: it exits without another update. Its last reports are still read."""
        with suppress(OSError):
            self._ours.shutdown(socket.SHUT_WR)

    def _state(self) -> str:
        return "program"

    async def _take_stacks(self) -> str:
        return ""

    def _end(self, stacks: str) -> m.TrainerGone:  # noqa: ARG002 - there are none
        self._ours.close()
        self._page.close()
        told = self._told
        if told is not None:
            reason = m.DeathReason.EXIT if told.was_told else m.DeathReason.EXCEPTION
            exit_ = Exit(code=0 if told.was_told else 1)
        else:
            found, oom_kills = self._program.cause()
            exit_ = found or Exit()
            evidence = Evidence(oom_kills=oom_kills)
            by_memory = found is None and bool(oom_kills)
            reason = m.DeathReason.MEMORY if by_memory else death_reason(exit_, evidence)
        _log.info("Trainer %d in process %d has ended: %s", self.number, self.pid, reason.value)
        return m.TrainerGone(
            incarnation=self.number,
            reason=reason,
            pid=self.pid,
            exit_code=exit_.code,
            signal=exit_.signal_name,
            in_program=True,
        )
