"""Write bytes to a descriptor that may block (terminal, pipe, disk) for callers that must not block.

Promises: `write` never waits and never raises. Pieces that do not fit into the bounded queue are dropped and counted,
and the output itself says so at the gap. `close` waits for a stated time at most. A separate thread does the writing.
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
    """Writes whole pieces in order, each after `prefix`. The caller owns the descriptor and may share it."""

    def __init__(self, descriptor: int, name: str, *, prefix: bytes = b"", bytes_max: int = _BYTES_MAX) -> None:
        self._descriptor = descriptor
        self._prefix = prefix
        self._bytes_max = bytes_max
        self._pieces: deque[bytes] = deque()
        self._queued_bytes = 0
        self._unreported = 0
        self._closing = False
        self.dropped_count = 0
        self._changed = threading.Condition()
        # A daemon thread: a write that hangs on a dead terminal must not keep the process alive.
        self._thread = threading.Thread(target=self._run, name=f"writer-{name}", daemon=True)
        self._thread.start()

    def write(self, piece: bytes) -> None:
        """Queue `piece`, or drop and count it if the queue is full or closing."""
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
        self._unreported += 1

    def _run(self) -> None:
        while (piece := self._next()) is not None:
            try:
                self._put(memoryview(self._prefix + piece))
            except OSError:
                # A closed terminal or a full disk. Go on: the disk may have space again for the next piece.
                with self._changed:
                    self._count_dropped()

    def _put(self, view: memoryview) -> None:
        while view:
            view = view[self._write(view) :]

    def _write(self, view: memoryview) -> int:
        try:
            # os.write and not a buffered file: the interpreter takes the lock of a buffered file when it exits.
            return os.write(self._descriptor, view)
        except BlockingIOError:
            # Another process that shares this descriptor made it non-blocking.
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
            if self._unreported:
                piece += f"[{self._unreported} pieces of output were dropped here]\n".encode()
                self._unreported = 0
            return piece

    def close(self, timeout_s: float = 1.0) -> None:
        """Write the queued pieces, for `timeout_s` at most. Later writes are dropped."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout_s)
