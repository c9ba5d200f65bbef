"""Group commit: many threads and tasks append, one thread writes, and callers wait until their events are durable.

There is no timer. All events that are queued while one write is in flight go into the next frame. A single caller
therefore waits for its own write only, and many callers share the cost of one write.

Invariants:

* Events are written in the order of the `append` calls. A frame has the labels of its last event.
* A caller is told that an event is durable only after the write of its frame has returned.
* After a failure nothing more is written. Every caller that waits or appends, now or later, gets JournalFailed.
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
    # Reading commands load this package and must not load asyncio. A caller that awaits has loaded it already.
    from asyncio import AbstractEventLoop, Future

_log = logging.getLogger(__name__)

_FULL_PAUSE_S: Final = 0.2  # between two attempts to write while the disk is full
# A frame of this size takes no further events. A longer one saves nothing and makes its callers wait longer.
_GROUP_BYTES_MAX: Final = 4 << 20
# Groups that may wait for the one in flight: at most 65 536 events, or about 64 MB. More would only hide a slow disk.
_GROUPS_MAX: Final = 16
# Checked in `append`: an event that no frame can hold must be refused to its own caller, not to a whole group.
_EVENT_BYTES_MAX: Final = BODY_BYTES_MAX - len(array_head(EVENTS_MAX))
_LABEL_MAX: Final = (1 << 64) - 1


class _Group(msgspec.Struct):
    """The events of one future frame, and the tasks that wait for it, by event loop."""

    events: list[bytes] = []
    size: int = 0
    epoch: int = 0
    step: int = 0
    written: bool = False
    waiting: dict[AbstractEventLoop, list[Future[None]]] = {}


class GroupCommit:
    """A queue of events, and the thread that writes them. Only that thread uses the appender."""

    def __init__(self, appender: Appender) -> None:
        from asyncio import get_running_loop  # here for the same reason as above

        self._appender = appender
        self._running_loop = get_running_loop
        # One lock protects every field. Three conditions on it: work for the thread, room for callers, progress.
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._room = threading.Condition(self._lock)
        self._progress = threading.Condition(self._lock)
        self._groups: deque[_Group] = deque()
        self._in_flight: _Group | None = None
        self._idle = self._closing = self._failed = False
        # A daemon thread: a program that exits without `close` must not hang here. Events that nobody waited for may
        # then be missing, as after a crash.
        self._thread = threading.Thread(target=self._run, name="journal-group", daemon=True)
        self._thread.start()

    def append(self, event: bytes, epoch: int, step: int) -> None:
        """Queue one event. Block while the queue is full. Raises BatchRefused, JournalFailed, JournalClosed."""
        size = len(event)
        # safety: event-out-of-bounds-refused
        if size > _EVENT_BYTES_MAX or not (0 <= epoch <= _LABEL_MAX and 0 <= step <= _LABEL_MAX):
            raise BatchRefused(f"an event of {size} bytes, epoch {epoch}, step {step} is outside the format's bounds")
        with self._lock:
            # Usually the newest group has room. The check is inline because a call would double the cost of an append.
            groups = self._groups
            group = groups[-1] if groups else None
            # safety: frame-closed-before-too-long, frame-closed-before-too-many
            if group is None or group.size + size > _GROUP_BYTES_MAX or len(group.events) >= EVENTS_MAX:
                group = self._next_open()
            group.events.append(event)
            group.size += size
            # The last event's labels win, so that a search by step never passes over an event of that step.
            group.epoch, group.step = epoch, step
            # Wake the thread only if it sleeps. While a write is in flight it looks at the queue afterwards anyway.
            if self._idle:
                self._idle = False
                self._work.notify()

    def _next_open(self) -> _Group:
        """Return a new group for the next event as soon as the queue has room. The caller holds the lock."""
        while not (self._closing or self._failed):
            if len(self._groups) < _GROUPS_MAX:  # safety: backlog-is-bounded
                self._groups.append(_Group())
                return self._groups[-1]
            # The writing thread needs nothing from its callers. So this wait ends, even if it blocks an event loop.
            self._room.wait()
        raise self._refusal()

    def _refusal(self) -> JournalError:
        failure = self._appender.failure
        return failure.again() if failure is not None else JournalClosed("the journal is being closed")

    def durable(self) -> None:
        """Block until everything appended so far is durable. Raises JournalFailed."""
        with self._lock:
            last = self._last()
            # Wait for this group only. Events that other threads append later do not delay this caller.
            while last is not None and not last.written:
                if self._failed:
                    raise self._refusal()
                self._progress.wait()

    def _last(self) -> _Group | None:
        """Return the newest unwritten group, or None. The caller holds the lock. Raises after a failure."""
        # The group in flight counts too: its events are not durable before its write returns.
        if self._failed:  # safety: later-caller-hears-failure
            raise self._refusal()
        return self._groups[-1] if self._groups else self._in_flight  # safety: wait-includes-write-in-flight

    def durable_async(self) -> Awaitable[None]:
        """Return an awaitable that does the same for the running event loop. Cancelling it removes no event."""
        loop = self._running_loop()
        future = loop.create_future()
        with self._lock:
            last = self._last()
            if last is None:
                future.set_result(None)
            else:
                # By loop: the thread then needs one call into each loop for a group, not one for each task.
                last.waiting.setdefault(loop, []).append(future)
        return future

    def close(self) -> None:
        """Write the queued events, answer all waiting callers, and end the thread."""
        with self._lock:
            self._closing = True
            self._work.notify()
            # Callers that wait for room must be refused now. Otherwise they would wait for ever.
            self._room.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while (group := self._next()) is not None:
            failed = False  # safety: durable-told-after-write
            try:
                self._write(group)
            except BaseException as error:  # noqa: BLE001 -- every waiting caller gets it
                # After any error this thread writes no more. An error of the journal itself has already frozen it. Any
                # other error (a state that cannot be captured) freezes it here: this thread has no caller to raise to.
                failed = True
                if self._appender.failure is None:
                    self._appender.freeze("the group-commit thread failed", error)
                if not isinstance(error, JournalError):
                    _log.exception("the group-commit thread of a journal failed")
            if failed:
                # The thread ends here. From now on `append` and `durable` raise the failure.
                self._fail(group)
                return
            with self._lock:
                group.written = True
                self._in_flight = None
                self._progress.notify_all()
                waiting = list(group.waiting.items())
            # Outside the lock: waking an event loop runs foreign code, which may call `append`.
            _tell(waiting, None)

    def _next(self) -> _Group | None:
        """Take the next group from the queue. Return None if the journal is closing and the queue is empty."""
        with self._lock:
            while not self._groups:
                if self._closing:
                    return None
                self._idle = True
                self._work.wait()
            self._idle = False
            # From here on the group is closed: `append` starts a new one, which the next write takes.
            self._in_flight = group = self._groups.popleft()
            self._room.notify_all()
            return group

    def _write(self, group: _Group) -> None:
        events = group.events
        body = b"".join((array_head(len(events)), *events))
        # Read the clocks at the write: a frame's labels say when it was written.
        stamp = Stamp(group.epoch, group.step, time.time_ns(), time.monotonic_ns())
        while True:
            try:
                # The events are given along for the table: the body is already encoded and is not decoded again.
                self._appender.put(Batch(int(FrameKind.EVENTS), len(events), body), stamp, events)
            except JournalFull:  # safety: full-disk-waited-for
                # Callers wait meanwhile, as they do for a slow disk. Only closing the journal ends the attempts.
                if self._closing:  # safety: close-does-not-wait-for-space
                    raise
                time.sleep(_FULL_PAUSE_S)
            else:
                return

    def _fail(self, group: _Group) -> None:
        with self._lock:
            self._failed = True
            # The failed group too: its callers wait for an answer like those of the queued groups.
            groups = [group, *self._groups]  # safety: waiter-hears-failure
            # Queued events are dropped: they must not be written after a failed one, because their callers rely on
            # the order.
            self._groups.clear()
            self._in_flight = None
            self._progress.notify_all()
            self._room.notify_all()
            waiting = [item for lost in groups for item in lost.waiting.items()]
        _tell(waiting, self._appender.failure)


def _tell(waiting: list[tuple[AbstractEventLoop, list[Future[None]]]], failure: JournalFailed | None) -> None:
    for loop, futures in waiting:
        # A loop that was closed in the meantime has no waiting tasks.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(_resolve, futures, failure)


def _resolve(futures: list[Future[None]], failure: JournalFailed | None) -> None:
    for future in futures:
        # safety: cancelled-task-blocks-nobody
        if future.done():  # its task was cancelled
            continue
        if failure is None:
            future.set_result(None)
        else:
            future.set_exception(failure.again())
