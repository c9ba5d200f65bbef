"""`trainer: thread`: one trainer in a thread of the daemon, with the interface of an incarnation.

Promises: the end is reported once, after the thread has ended. A thread cannot be killed, so its channel is closed
instead: no further update begins, and the thread ends when it next looks at the channel. If it does not, it is reported
as stuck. Fields that only a process has (a signal, captured output) stay empty.
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

import msgspec

from tolariad.channel import Page, TrainerEnd, channel_pair
from tolariad.core.inputs import TrainerGone, TrainerSilent, TrainerSpawned, TrainerStuck
from tolariad.core.trainer.words import DeathReason
from tolariad.supervisor.hang import HangMonitor, Silence
from tolariad.supervisor.incarnation import PageView, Recorder, Timeouts
from tolariad.supervisor.procfs import boot_id

_log: Final = logging.getLogger(__name__)


class TrainerExit(NamedTuple):
    """How the trainer's code ended: the exit code of the equivalent process, and the traceback if it raised."""

    code: int
    traceback: str = ""


TrainerCode = Callable[[TrainerEnd, tuple[int, ...]], TrainerExit]


class ThreadIncarnation(PageView):
    """A running trainer thread. Create and use it on the main thread's event loop.

    `trainer_code` is called with its end of the channel and the descriptors that forked children must close.
    """

    def __init__(self, number: int, trainer_code: TrainerCode, timeouts: Timeouts, recorder: Recorder) -> None:
        self.number = number
        self._trainer_code = trainer_code
        self._timeouts = timeouts
        self._recorder = recorder
        self._loop = asyncio.get_running_loop()
        self._gone = asyncio.Event()
        self._ended = TrainerExit(1)
        self._closed_ns = 0
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
        """The daemon's own process id: there is no other process."""
        return os.getpid()

    def kill(self, why: str) -> None:
        """Close its channel: the trainer exits without another update."""
        if self._closed_ns or self._gone.is_set():
            return
        _log.info("Ending trainer %d (a thread): %s", self.number, why)
        self._close_channel()

    def _close_channel(self) -> None:
        self._closed_ns = time.monotonic_ns()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _train(self) -> None:
        """Run the trainer's code; this is the thread's target."""
        channel = TrainerEnd(self._socket, self._theirs)
        try:
            self._ended = self._trainer_code(channel, self._descriptors)
        except BaseException as error:  # noqa: BLE001 - reported as the cause of its end
            self._ended = TrainerExit(1, "".join(traceback.format_exception(error)))
        finally:
            # RuntimeError: the loop is closed, so nothing waits for this event.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._gone.set)

    async def run(self) -> None:
        """Watch the trainer until it has ended, then report the cause."""
        stacks, reported_stuck = "", False
        while not await self._gone_within(self._timeouts.poll_s):
            if self._closed_ns:
                reported_stuck = reported_stuck or self._report_if_stuck()
            elif silence := self._silence():
                stacks = self._take_stacks(silence)
                self._close_channel()
        self._report_end(stacks)

    def _report_if_stuck(self) -> bool:
        waited_s = (time.monotonic_ns() - self._closed_ns) / 1e9
        if waited_s < self._timeouts.kill_s:
            return False
        _log.error("Trainer %d is a thread that does not end. Only the end of the daemon can end it.", self.number)
        self._recorder.submit(TrainerStuck(incarnation=self.number, pid=self.pid, state="thread", waited_s=waited_s))
        return True

    def _take_stacks(self, silence: Silence) -> str:
        self._hung = True
        self._recorder.submit(TrainerSilent(incarnation=self.number, **msgspec.structs.asdict(silence)))
        # There is no other access to another thread's stack.
        frame = sys._current_frames().get(self._thread.ident or 0)  # noqa: SLF001
        return "".join(traceback.format_stack(frame)) if frame else ""

    def _report_end(self, stacks: str) -> None:
        self._thread.join()
        self._socket.close()
        self._page.close()
        self._theirs.close()
        code = self._ended.code
        if self._hung:
            reason = DeathReason.HANG
        elif self._closed_ns:
            reason = DeathReason.KILLED
        else:
            reason = DeathReason.EXIT
        _log.log(logging.INFO if code == 0 else logging.WARNING, "Trainer %d has ended: %s", self.number, reason.value)
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
