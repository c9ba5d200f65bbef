"""How the kernel's thread sleeps: on an eventfd that any thread may signal, and on the trainer's socket.

Promises: no call of `wake` is lost. If a wake-up packet of the trainer is lost, the thread wakes some milliseconds
late; it never hangs.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
from typing import Final

from tolariad.channel import DaemonEnd, Reports

SLEEP_MAX_MS: Final = 1000
# How often the kernel checks for steps that it may hold back. If the trainer runs in the same process, each check takes
# the interpreter lock from it for a moment.
DOZE_MS: Final = 20
# How often it checks whether steps are to be written that it has held back.
HELD_LOOK_MS: Final = 5
# How often the ring is polled before the length of the pause is computed again.
LOOKS: Final = 16
# Steps flow if the last one is younger than this.
FLOW_NS: Final = 1_000_000_000
_SHORT_MS: Final = 5
_SHORTEST_MS: Final = 1


class Wakeup:
    """An eventfd and a poll object. Any thread may call `wake`; only the kernel's thread may call the others.

    The methods that sleep return True if the trainer's socket is readable, which includes end-of-file.
    """

    def __init__(self) -> None:
        # An eventfd counts signals, so any number of wake-ups before a sleep costs one read and none is lost.
        self._eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._signalled = False
        # Reentrant: a signal's handler may wake while its own thread does.
        self._closing = threading.RLock()
        self.is_closed = False
        self._poll = select.poll()
        self._poll.register(self._eventfd, select.POLLIN)

    def wake(self) -> bool:
        """Wake the kernel's thread, or keep it from falling asleep. Return False after `close`."""
        # The number of a closed descriptor may be another file's.
        with self._closing:
            if self.is_closed:
                return False
            os.eventfd_write(self._eventfd, 1)
        # Set the flag after the write. If `clear` runs between the two, the eventfd stays readable and the next sleep
        # ends at once: one wake-up too many, never one too few.
        self._signalled = True
        return True

    def clear(self) -> None:
        """Consume every signal so far. Call it before reading the inputs: a later signal then ends the next sleep."""
        if self._signalled:
            self._signalled = False
            self._drain()

    def register(self, end: DaemonEnd) -> None:
        """Wake also if this end's socket becomes readable."""
        self._poll.register(end.fileno(), select.POLLIN)

    def unregister(self, end: DaemonEnd) -> None:
        """Stop waking for this end; a no-op if it was not registered."""
        with contextlib.suppress(KeyError):
            self._poll.unregister(end.fileno())

    def sleep(self, most_ms: int = SLEEP_MAX_MS) -> bool:
        """Sleep until something happens, at most `most_ms`."""
        fired = self._poll.poll(most_ms)
        if not fired:
            return False
        descriptors = {descriptor for descriptor, _ in fired}
        if self._eventfd in descriptors:
            # Drain here as well as in `clear`. The thread that called `wake` may have been preempted between its write
            # and its flag. If this thread has the higher priority on their core, the flag would never be set. Then
            # `clear` would never drain, and every sleep would end at once.
            self._drain()
        # End-of-file also makes the socket readable. The turn that reads it then finds the trainer gone.
        return descriptors != {self._eventfd}

    def _drain(self) -> None:
        # Reading the counter resets it. It is already zero if `sleep` drained it before `clear`.
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._eventfd)

    def sleep_on_ring(self, end: DaemonEnd, reports: Reports, *, steps_flow: bool, most_ms: int = SLEEP_MAX_MS) -> bool:
        """Sleep until something happens; a new record in the step ring counts. Retry a full outbox soon.

        `asleep` tells the trainer to send a packet with its next record. The ring is checked once more after that.
        """
        # Invariant: set `asleep`, then check the ring. In the other order a record could arrive between the two, and
        # the trainer would not send a packet for it.
        end.page.set_asleep(1)
        try:
            if reports.has_next:
                return False
            # No memory fence orders the trainer's store of a record against its load of `asleep`. So a packet can be
            # missing even though both sides kept the order. While steps flow the sleep is short for that reason.
            soon = steps_flow or end.unsent_count > 0
            return self.sleep(
                _SHORTEST_MS if reports.later_record_present else min(most_ms, _SHORT_MS if soon else SLEEP_MAX_MS)
            )
        finally:
            end.page.set_asleep(0)
            end.flush()

    def close(self) -> None:
        """Close the eventfd. Call it after the kernel's thread has ended."""
        with self._closing:
            if not self.is_closed:
                self.is_closed = True
                os.close(self._eventfd)
