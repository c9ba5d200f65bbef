"""Where the kernel's thread sleeps: on an eventfd that any thread may ring, and on the trainer's socket.

Promises: a ring is never lost; a lost wake of the trainer's costs milliseconds, never a hang. It must not know: what an
input or a report says.
"""

from __future__ import annotations

import contextlib
import os
import select
from typing import Final

from tolariad.channel import DaemonEnd, Reports

SLEEP_MAX_MS: Final = 1000
# Steps that may be held back are looked for so often; each look costs a trainer in the same process its interpreter for a while.
DOZE_MS: Final = 20
_SHORT_MS: Final = 5
_SHORTEST_MS: Final = 1


class Wakeup:
    """An eventfd and a poll object. `ring` is for any thread, everything else for the kernel's.

    Every way of sleeping returns whether the trainer's socket has something to say, an end-of-file included.
    """

    def __init__(self) -> None:
        self._eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._signalled = False
        self._poll = select.poll()
        self._poll.register(self._eventfd, select.POLLIN)

    def wake(self) -> None:
        """Wake the kernel's thread, or keep it from falling asleep."""
        os.eventfd_write(self._eventfd, 1)
        # Behind the write: a ring that `clear` does not see yet wakes once more, it is never forgotten.
        self._signalled = True

    def clear(self) -> None:
        """Forget every ring so far; before the inputs are looked at."""
        if self._signalled:
            self._signalled = False
            self._drain()

    def register(self, end: DaemonEnd) -> None:
        """Wake for what this end brings, too."""
        self._poll.register(end.fileno(), select.POLLIN)

    def unregister(self, end: DaemonEnd) -> None:
        """No longer; does nothing where it was not watched."""
        with contextlib.suppress(KeyError):
            self._poll.unregister(end.fileno())

    def sleep(self, most_ms: int = SLEEP_MAX_MS) -> bool:
        """Until something happens; not for ever."""
        fired = self._poll.poll(most_ms)
        if not fired:
            return False
        descriptors = {descriptor for descriptor, _ in fired}
        if self._eventfd in descriptors:
            # Here, and not only in `clear`: the thread that rang may not have come as far as to say so, and where this one
            # runs before all others on their core it never would, and every sleep would end at once.
            self._drain()
        return descriptors != {self._eventfd}

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._eventfd)

    def doze(self) -> bool:
        """A moment: steps flow and nobody waits for them, so the trainer need not wake anybody."""
        return self.sleep(DOZE_MS)

    def sleep_on_ring(self, end: DaemonEnd, reports: Reports, *, steps_flow: bool, most_ms: int = SLEEP_MAX_MS) -> bool:
        """Until something happens, a record in the ring included; a full outbox is tried again soon.

        Says that a record must wake us, then looks once more. Between the two looks a store may still be on its way
        (nothing fences them), so while steps flow the sleep is short.
        """
        end.page.set_asleep(1)
        try:
            if reports.has_next:
                return False
            soon = steps_flow or end.unsent_count > 0
            return self.sleep(
                _SHORTEST_MS if reports.later_record_present else min(most_ms, _SHORT_MS if soon else SLEEP_MAX_MS)
            )
        finally:
            end.page.set_asleep(0)
            end.flush()

    def close(self) -> None:
        """After the kernel's thread has ended."""
        os.close(self._eventfd)
