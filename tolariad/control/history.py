"""Read the journal for the control server, in slices and in separate threads: the event loop never waits for a disk.

Promises: only durable events are shown. A slow client holds at most one slice in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from itertools import takewhile
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from journal.reader import Reader
from tolariad.control.outcome import outcome_of
from tolariad.control.replies import Outcome
from tolariad.core import messages as m
from tolariad.core.calc.text.plain import plain_event
from tolariad.core.messages.vocabulary import decode_event

SLICE_EVENTS: Final = 256
SLICE_BYTES: Final = 64 * 1024
_THREADS: Final = 2
T = TypeVar("T")


class History:
    """Threads that read the journal at `path`. `durable_seq` returns the last event that may be shown."""

    def __init__(self, path: Path, durable_seq: Callable[[], int]) -> None:
        self._path = path
        self._durable_seq = durable_seq
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="control-history")

    def close(self) -> None:
        """Start no further read, and do not wait for the one in flight."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def run(self, function: Callable[[], T]) -> T:
        """Run `function` in one of the threads."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, function)

    async def outcome(self, command: m.Command, order_seq: int) -> Outcome | None:
        """Find the outcome of an order that was recorded earlier, or None if it has not ended."""

        def search() -> Outcome | None:
            durable_seq = self._durable_seq()
            with Reader(self._path) as reader:
                durable = takewhile(lambda entry: entry.seq <= durable_seq, reader.seek(seq=order_seq))
                return outcome_of(command, order_seq, ((entry.seq, decode_event(entry.event)) for entry in durable))

        return await self.run(search)

    def slices(self, from_seq: int) -> Generator[list[dict[str, Any]], None, None]:
        """Yield the next events as plain values, without end; an empty list at the end of the durable events.

        Call `next` and `close` by `run`: they read and close files. Only one thread may do so at a time.
        """
        with Reader(self._path) as reader:
            reader.seek(seq=from_seq)
            while True:
                shown: list[dict[str, Any]] = []
                size, durable_seq = 0, self._durable_seq()
                for entry in reader:
                    if entry.seq > durable_seq:
                        reader.seek(seq=entry.seq)  # it is read again when it is durable
                        break
                    size += len(bytes(entry.event))
                    shown.append(plain_event(entry.seq, msgspec.msgpack.decode(entry.event)))
                    if len(shown) == SLICE_EVENTS or size >= SLICE_BYTES:
                        break
                yield shown
