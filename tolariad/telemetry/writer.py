"""Bytes to a descriptor that may block (a terminal, a pipe, a disk), from a caller that may not.

Promises: `write` never waits and never raises; what does not fit into the bounded queue is dropped and counted, and the
gap is said in the output itself; `close` waits a stated time at most. A thread of its own does the waiting. It must not
know: what the bytes mean.
"""

from __future__ import annotations

import os
import select
import threading
from collections import deque
from typing import Final

_PIECES_MAX: Final = 4096
_BYTES_MAX: Final = 4 * 1024 * 1024


class BoundedWriter:
    """Writes whole pieces in order, each behind `prefix`. The descriptor stays the caller's, and he may share it."""

    def __init__(self, descriptor: int, name: str, *, prefix: bytes = b"", bytes_max: int = _BYTES_MAX) -> None:
        self._descriptor = descriptor
        self._prefix = prefix
        self._bytes_max = bytes_max
        self._pieces: deque[bytes] = deque()
        self._queued_bytes = 0
        self._untold = 0
        self._closing = False
        self.dropped_count = 0
        self._changed = threading.Condition()
        # A daemon thread: one that hangs in a write to a dead terminal must not keep the process alive.
        self._thread = threading.Thread(target=self._run, name=f"writer-{name}", daemon=True)
        self._thread.start()

    def write(self, piece: bytes) -> None:
        """Queue `piece`, or drop and count it where the queue is full."""
        with self._changed:
            full = len(self._pieces) >= _PIECES_MAX or self._queued_bytes + len(piece) > self._bytes_max
            if full or self._closing:
                self._count_dropped()
                return
            self._pieces.append(piece)
            self._queued_bytes += len(piece)
            self._changed.notify()

    def _count_dropped(self) -> None:
        self.dropped_count += 1
        self._untold += 1

    def _run(self) -> None:
        while (piece := self._next()) is not None:
            try:
                self._put(memoryview(self._prefix + piece))
            except OSError:
                # A closed terminal or a full disk, which may have room again for the next piece.
                with self._changed:
                    self._count_dropped()

    def _put(self, view: memoryview) -> None:
        while view:
            view = view[self._write(view) :]

    def _write(self, view: memoryview) -> int:
        try:
            # os.write, not a buffered file: no lock is held that the interpreter wants at its end.
            return os.write(self._descriptor, view)
        except BlockingIOError:
            # Somebody who shares this descriptor made it non-blocking.
            select.select([], [self._descriptor], [])
            return 0

    def _next(self) -> bytes | None:
        with self._changed:
            while not self._pieces:
                if self._closing:
                    return None
                self._changed.wait()
            piece = self._pieces.popleft()
            self._queued_bytes -= len(piece)
            if self._untold:
                piece += f"[{self._untold} pieces of output were dropped here]\n".encode()
                self._untold = 0
            return piece

    def close(self, timeout_s: float = 1.0) -> None:
        """Write what is queued, for `timeout_s` at most; later writes are dropped."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout_s)
