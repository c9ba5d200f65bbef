"""`trainer: thread`: one trainer in a thread of the daemon, from its start to its end, with the face of an incarnation.

Promises: the death is told once, after the thread has ended; a thread cannot be killed, so what is to end gets its channel
cut (no further update begins, and it leaves by itself at its next look), and one that does not is said to be stuck. What a
process could show and a thread cannot (a signal, captured output) is left empty. It must not know: torch.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

from tolariad.channel import Page, TrainerEnd, channel_pair
from tolariad.core.inputs import TrainerGone, TrainerSilent, TrainerSpawned, TrainerStuck
from tolariad.core.vocabulary.trainer import DeathReason
from tolariad.supervisor.hang import HangMonitor, Silence
from tolariad.supervisor.incarnation import PageView, Recorder, Timeouts
from tolariad.supervisor.procfs import boot_id

_log: Final = logging.getLogger(__name__)


class TrainerExit(NamedTuple):
    """What the trainer's code came to: an exit code as a process would have had, and a traceback where it raised."""

    code: int
    traceback: str = ""


TrainerCode = Callable[[TrainerEnd, tuple[int, ...]], TrainerExit]


class ThreadIncarnation(PageView):
    """The living trainer. Made and used on the loop of the main thread.

    `trainer_code` is the trainer's code: it gets its end of the channel, and the descriptors that forked children must close.
    """

    def __init__(self, number: int, trainer_code: TrainerCode, timeouts: Timeouts, recorder: Recorder) -> None:
        self.number = number
        self._trainer_code = trainer_code
        self._timeouts = timeouts
        self._recorder = recorder
        self._loop = asyncio.get_running_loop()
        self._gone = asyncio.Event()
        self._ended = TrainerExit(1)
        self._cut_ns = 0
        self._hung = False
        end, self._socket = channel_pair(number)
        self._page = Page.attach(os.dup(end.page.descriptor))
        self._theirs = Page.attach(os.dup(end.page.descriptor))
        self._descriptors = (end.fileno(), end.page.descriptor, self._socket.fileno())
        self._monitor = HangMonitor(timeouts.hang, time.monotonic_ns())
        self._thread = threading.Thread(target=self._train, name=f"tolaria-trainer-{number}", daemon=True)
        recorder.attach(end, TrainerSpawned(incarnation=number, pid=os.getpid(), start_ticks=0, boot_id=boot_id()))
        self._thread.start()

    @property
    def pid(self) -> int:
        """The daemon's own number: there is no other process."""
        return os.getpid()

    def kill(self, why: str) -> None:
        """Cut its channel, which it takes as an order to exit without another update."""
        if self._cut_ns or self._gone.is_set():
            return
        _log.info("trainer %d (a thread) is ended: %s", self.number, why)
        self._cut()

    def _cut(self) -> None:
        self._cut_ns = time.monotonic_ns()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _train(self) -> None:
        """In the trainer's thread."""
        channel = TrainerEnd(self._socket, self._theirs)
        try:
            self._ended = self._trainer_code(channel, self._descriptors)
        except BaseException as error:  # noqa: BLE001 - told as what ended it; the thread has nobody else to tell
            self._ended = TrainerExit(1, "".join(traceback.format_exception(error)))
        finally:
            # A loop that is closed has nobody left who waits.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._gone.set)

    async def run(self) -> None:
        """Watch it to its end, then tell what ended it."""
        stacks, said_stuck = "", False
        while not await self._gone_within(self._timeouts.poll_s):
            if self._cut_ns:
                said_stuck = said_stuck or self._say_if_stuck()
            elif silence := self._silence():
                stacks = self._take_stacks(silence)
                self._cut()
        self._tell(stacks)

    def _say_if_stuck(self) -> bool:
        waited_s = (time.monotonic_ns() - self._cut_ns) / 1e9
        if waited_s < self._timeouts.kill_s:
            return False
        _log.error("trainer %d is a thread that does not end; only the daemon's own end would end it", self.number)
        self._recorder.submit(TrainerStuck(incarnation=self.number, pid=self.pid, state="thread", waited_s=waited_s))
        return True

    def _take_stacks(self, silence: Silence) -> str:
        self._hung = True
        self._recorder.submit(
            TrainerSilent(
                incarnation=self.number, activity=silence.activity, silent_s=silence.silent_s, limit_s=silence.limit_s
            )
        )
        frame = sys._current_frames().get(self._thread.ident or 0)  # noqa: SLF001 - the only way to another thread's stack
        return "".join(traceback.format_stack(frame)) if frame else ""

    def _tell(self, stacks: str) -> None:
        self._thread.join()
        self._socket.close()
        self._page.close()
        self._theirs.close()
        code = self._ended.code
        if self._hung:
            reason = DeathReason.HANG
        elif self._cut_ns:
            reason = DeathReason.KILLED
        else:
            reason = DeathReason.EXIT
        _log.log(logging.INFO if code == 0 else logging.WARNING, "trainer %d has ended: %s", self.number, reason.value)
        self._recorder.submit(
            TrainerGone(
                incarnation=self.number,
                reason=reason,
                pid=self.pid,
                exit_code=code,
                output=self._ended.traceback,
                stacks=stacks,
            )
        )
