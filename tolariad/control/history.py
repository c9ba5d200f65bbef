"""Read the journal for the control server, in slices and in separate threads: the event loop never waits for a disk.

Promises: only durable events are shown. A slow client holds at most one slice in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from journal import JournalEntry
from journal.reader import Reader
from tolariad.control.outcome import Outcome, may_end, outcome_of
from tolariad.core.base import Event
from tolariad.core.control import words as cv
from tolariad.core.plain import plain_event
from tolariad.core.vocabulary import Unknown, decode_event

SLICE_EVENTS: Final = 256
SLICE_BYTES: Final = 64 * 1024
_THREADS: Final = 2
T = TypeVar("T")


class History:
    """Threads that read the journal at `path`. `durable_seq` returns the last event that may be shown."""

    def __init__(self, path: Path, durable_seq: Callable[[], int]) -> None:
        self.path = path
        self.durable_seq = durable_seq
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="control-history")

    def close(self) -> None:
        """Start no further read, and do not wait for the one in flight."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def run(self, function: Callable[[], T]) -> T:
        """Run `function` in one of the threads."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, function)

    async def outcome(self, command: cv.Command, order_seq: int) -> Outcome | None:
        """Find the outcome of an order that was recorded earlier, or None if it has not ended."""
        return await self.run(lambda: self._search(command, order_seq, self.durable_seq()))

    def _search(self, command: cv.Command, order_seq: int, durable_seq: int) -> Outcome | None:
        with Reader(self.path) as reader:
            reader.seek(seq=order_seq)
            return outcome_of(command, order_seq, _ending_events(reader, durable_seq))


def _ending_events(reader: Reader, durable_seq: int) -> Iterator[tuple[int, Event | Unknown]]:
    for entry in reader:
        if entry.seq > durable_seq:
            return
        event = decode_event(entry.event)
        if may_end(event):
            yield entry.seq, event


class Cursor:
    """A position in the journal that moves forward slice by slice. Only one thread may use it at a time."""

    def __init__(self, history: History, from_seq: int) -> None:
        self._history = history
        self._from_seq = from_seq
        self._reader: Reader | None = None
        self._entries: Iterator[JournalEntry] = iter(())
        self._held: JournalEntry | None = None

    async def next_slice(self) -> list[dict[str, Any]]:
        """Return the next events as plain values; empty at the end of the durable events."""
        return await self._history.run(self._read)

    async def close(self) -> None:
        """Close the files, in the thread pool: a read may be using them."""
        await self._history.run(self._close)

    def _close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _read(self) -> list[dict[str, Any]]:
        durable = self._history.durable_seq()
        if self._reader is None:
            self._reader = Reader(self._history.path)
            self._reader.seek(seq=self._from_seq)
        shown: list[dict[str, Any]] = []
        size = 0
        while len(shown) < SLICE_EVENTS and size < SLICE_BYTES:
            entry = self._held or self._next(self._reader)
            self._held = entry
            if entry is None or entry.seq > durable:
                break
            self._held = None
            size += len(bytes(entry.event))
            shown.append(plain_event(entry.seq, msgspec.msgpack.decode(entry.event)))
        return shown

    def _next(self, reader: Reader) -> JournalEntry | None:
        # An iterator that is at its end is not asked again; a new one sees what has come since.
        entry = next(self._entries, None)
        if entry is None:
            self._entries = iter(reader)
            entry = next(self._entries, None)
        return entry
