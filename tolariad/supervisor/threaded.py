"""`trainer: thread`: one trainer in a thread of the daemon, with the interface of an incarnation.

Promises: the end is reported once, after the thread has ended. A thread cannot be killed, so its channel is closed
instead. No further update begins then, and the thread ends when it next reads the channel. If it does not, it is
reported as stuck. Fields that only a process has (a signal, captured output) stay empty.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

from tolariad.boot import boot_id
from tolariad.channel import Page, TrainerEnd, channel_pair
from tolariad.core import messages as m
from tolariad.supervisor.incarnation import Recorder, RunningTrainer, Timeouts

_log: Final = logging.getLogger(__name__)


class TrainerExit(NamedTuple):
    """How the trainer's code ended: the exit code of the equivalent process, and the traceback if it raised."""

    code: int
    traceback: str = ""


TrainerCode = Callable[[TrainerEnd, tuple[int, ...]], TrainerExit]


class ThreadIncarnation(RunningTrainer):
    """A running trainer thread. Create and use it on the main thread's event loop.

    `trainer_code` is called with its end of the channel and the descriptors that forked children must close.
    """

    def __init__(self, number: int, trainer_code: TrainerCode, timeouts: Timeouts, recorder: Recorder) -> None:
        super().__init__(number, timeouts, recorder)
        self._trainer_code = trainer_code
        self._loop = asyncio.get_running_loop()
        self._exit = TrainerExit(1)
        end, self._socket = channel_pair(number)
        self._page = Page.attach(os.dup(end.page.descriptor))
        self._theirs = Page.attach(os.dup(end.page.descriptor))
        self._descriptors = (end.fileno(), end.page.descriptor, self._socket.fileno())
        self._thread = threading.Thread(target=self._train, name=f"tolaria-trainer-{number}", daemon=True)
        recorder.attach(end, m.TrainerSpawned(incarnation=number, pid=os.getpid(), start_ticks=0, boot_id=boot_id()))
        self._thread.start()

    @property
    def pid(self) -> int:
        """The daemon's own process id: there is no other process."""
        return os.getpid()

    def _train(self) -> None:
        """Run the trainer's code; this is the thread's target."""
        channel = TrainerEnd(self._socket, self._theirs)
        try:
            self._exit = self._trainer_code(channel, self._descriptors)
        except BaseException as error:  # noqa: BLE001 - reported as the cause of its end
            self._exit = TrainerExit(1, "".join(traceback.format_exception(error)))
        finally:
            # RuntimeError: the loop is closed, so nothing waits for this event.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._gone.set)

    def _cut_off(self) -> None:
        """Close its channel: the trainer exits without another update."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _state(self) -> str:
        return "thread"

    async def _take_stacks(self) -> str:
        # There is no other access to another thread's stack.
        frame = sys._current_frames().get(self._thread.ident or 0)  # noqa: SLF001
        return "".join(traceback.format_stack(frame)) if frame else ""

    def _end(self, stacks: str) -> m.TrainerGone:
        self._thread.join()
        self._socket.close()
        self._page.close()
        self._theirs.close()
        code = self._exit.code
        reason = m.DeathReason.HANG if self._hung else m.DeathReason.KILLED if self._ended_ns else m.DeathReason.EXIT
        level = logging.INFO if code == 0 else logging.WARNING
        _log.log(
            level,
            "Trainer %d has ended: %s",
            self.number,
            reason.value,
            extra={"told_by": "TrainerDied"} if code else {},
        )
        return m.TrainerGone(
            incarnation=self.number,
            reason=reason,
            pid=self.pid,
            exit_code=code,
            output=self._exit.traceback,
            stacks=stacks,
        )
