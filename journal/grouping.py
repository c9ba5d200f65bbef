"""Group commit: many threads and tasks append, one thread writes, whoever wants to waits until it is durable.

There is no timer. What is queued while one write is in flight goes into the next frame: a lone caller waits for its own
write and no longer, and many callers share the price of one.

Invariants:

* Events are written in the order in which `append` took them; a frame's labels are its last event's.
* Nobody is told that an event is durable before the write that holds it has returned.
* After a failure nothing more is written, and everyone who waits, appends, or comes to wait later gets JournalFailed.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Final

import msgspec

from journal.appending import Appender
from journal.errors import BatchRefused, JournalClosed, JournalError, JournalFailed, JournalFull
from journal.format import BODY_BYTES_MAX, EVENTS_MAX, FrameKind
from journal.frame import array_head
from journal.writing import Batch, Stamp

if TYPE_CHECKING:
    # Reading commands load this package and must not load asyncio; whoever awaits has it already.
    from asyncio import AbstractEventLoop, Future

_log = logging.getLogger(__name__)

_FULL_PAUSE_S: Final = 0.2  # between two looks whether a full disk has space again
# A frame is closed to further events at this size: a longer one gains nothing and lets its callers wait.
_GROUP_BYTES_MAX: Final = 4 << 20
# Groups that may wait for the one in flight: at most 65 536 events, or some 64 MB.
_GROUPS_MAX: Final = 16
_EVENT_BYTES_MAX: Final = BODY_BYTES_MAX - len(array_head(EVENTS_MAX))
_LABEL_MAX: Final = (1 << 64) - 1


class _Group(msgspec.Struct):
    """The events of one frame to be, and the tasks that wait for it, by event loop."""

    events: list[bytes] = []
    size: int = 0
    epoch: int = 0
    step: int = 0
    written: bool = False
    waiting: dict[AbstractEventLoop, list[Future[None]]] = {}


class GroupCommit:
    """The thread before an `Appender`, and its queue. From the first `append` on the appender belongs to that thread."""

    def __init__(self, appender: Appender) -> None:
        from asyncio import get_running_loop  # here for the same reason as above

        self._appender = appender
        self._running_loop = get_running_loop
        # One lock for everything here; three reasons to wait for it.
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._room = threading.Condition(self._lock)
        self._progress = threading.Condition(self._lock)
        self._groups: deque[_Group] = deque()
        self._in_flight: _Group | None = None
        self._idle = self._closing = self._failed = False
        self._thread = threading.Thread(target=self._run, name="journal-group", daemon=True)
        self._thread.start()

    def append(self, event: bytes, epoch: int, step: int) -> None:
        """Queue one event; waits while the queue is full. Raises BatchRefused, JournalFailed, JournalClosed."""
        size = len(event)
        if size > _EVENT_BYTES_MAX or not (0 <= epoch <= _LABEL_MAX and 0 <= step <= _LABEL_MAX):
            raise BatchRefused(f"an event of {size} bytes, epoch {epoch}, step {step} is outside the format's bounds")
        with self._lock:
            # Most often the newest group has room: asked here, because a call costs as much as everything else.
            groups = self._groups
            group = groups[-1] if groups else None
            if group is None or group.size + size > _GROUP_BYTES_MAX or len(group.events) >= EVENTS_MAX:
                group = self._next_open()
            group.events.append(event)
            group.size += size
            group.epoch, group.step = epoch, step
            if self._idle:
                self._idle = False
                self._work.notify()

    def _next_open(self) -> _Group:
        """A new group for the next event, with the lock held, as soon as there is room for one more."""
        while not (self._closing or self._failed):
            if len(self._groups) < _GROUPS_MAX:
                self._groups.append(_Group())
                return self._groups[-1]
            # The writing thread needs nothing of its callers, so that waiting here, even on an event loop, ends.
            self._room.wait()
        raise self._refusal()

    def _refusal(self) -> JournalError:
        failure = self._appender.failure
        return failure.again() if failure is not None else JournalClosed("the journal is being closed")

    def durable(self) -> None:
        """Block until everything appended so far is durable. Raises JournalFailed."""
        with self._lock:
            last = self._last()
            while last is not None and not last.written:
                if self._failed:
                    raise self._refusal()
                self._progress.wait()

    def _last(self) -> _Group | None:
        """The newest group that is not written yet, with the lock held. Behind a failure there is no such thing."""
        if self._failed:
            raise self._refusal()
        return self._groups[-1] if self._groups else self._in_flight

    def durable_async(self) -> Awaitable[None]:
        """The same as an awaitable for the running event loop. Cancelling one who waits takes nothing back."""
        loop = self._running_loop()
        future = loop.create_future()
        with self._lock:
            last = self._last()
            if last is None:
                future.set_result(None)
            else:
                last.waiting.setdefault(loop, []).append(future)
        return future

    def close(self) -> None:
        """Write what is queued, tell everyone who waits, end the thread."""
        with self._lock:
            self._closing = True
            self._work.notify()
            self._room.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while (group := self._next()) is not None:
            failed = False
            try:
                self._write(group)
            except BaseException as error:  # noqa: BLE001 -- told to everyone who waits
                # Whatever it was, this thread writes no more. An error of the journal's own has been told by freezing;
                # any other (a state that cannot be captured) is told here, for nobody calls this thread.
                failed = True
                if self._appender.failure is None:
                    self._appender.freeze("the group-commit thread failed", error)
                if not isinstance(error, JournalError):
                    _log.exception("the group-commit thread of a journal failed")
            if failed:
                self._fail(group)
                return
            with self._lock:
                group.written = True
                self._in_flight = None
                self._progress.notify_all()
                waiting = list(group.waiting.items())
            _tell(waiting, None)

    def _next(self) -> _Group | None:
        """The next group, taken out of the queue; None when closing and nothing is left."""
        with self._lock:
            while not self._groups:
                if self._closing:
                    return None
                self._idle = True
                self._work.wait()
            self._idle = False
            self._in_flight = group = self._groups.popleft()
            self._room.notify_all()
            return group

    def _write(self, group: _Group) -> None:
        events = group.events
        body = b"".join((array_head(len(events)), *events))
        # The clock is read here, at the write: the frame says when it was made, as a commit's caller would.
        stamp = Stamp(group.epoch, group.step, time.time_ns(), time.monotonic_ns())
        while True:
            try:
                self._appender.put(Batch(int(FrameKind.EVENTS), len(events), body), stamp, events)
            except JournalFull:
                # Callers wait meanwhile, as they do for a slow disk; only an end of the journal gives up.
                if self._closing:
                    raise
                time.sleep(_FULL_PAUSE_S)
            else:
                return

    def _fail(self, group: _Group) -> None:
        with self._lock:
            self._failed = True
            groups = [group, *self._groups]
            self._groups.clear()
            self._in_flight = None
            self._progress.notify_all()
            self._room.notify_all()
            waiting = [item for lost in groups for item in lost.waiting.items()]
        _tell(waiting, self._appender.failure)


def _tell(waiting: list[tuple[AbstractEventLoop, list[Future[None]]]], failure: JournalFailed | None) -> None:
    for loop, futures in waiting:
        # A loop that was closed meanwhile has nobody left who waits.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(_resolve, futures, failure)


def _resolve(futures: list[Future[None]], failure: JournalFailed | None) -> None:
    for future in futures:
        if future.done():  # its task was cancelled
            continue
        if failure is None:
            future.set_result(None)
        else:
            future.set_exception(failure.again())
