"""Write bytes to a descriptor that may block (terminal, pipe, disk) for callers that must not block.

Promises: `write` never waits and never raises. Pieces that do not fit into the bounded queue are dropped and counted,
and the output itself says so at the gap. `close` waits for a stated time at most. A separate thread does the writing.
A log file and its predecessor each take at most `file_bytes` and one piece, and no piece is split between two files.
"""

from __future__ import annotations

import os
import select
import threading
from collections import deque
from pathlib import Path
from typing import Final

from tolariad import run_files

_PIECES_MAX: Final = 4096
_BYTES_MAX: Final = 4 * 1024 * 1024
# A trainer that prints 100 bytes a step at 50 steps a second fills a file in four hours. Two files are enough: the
# journal holds the history of the run.
FILE_BYTES: Final = 64 * 1024 * 1024


class BoundedWriter:
    """Writes whole pieces in order, each after `prefix`. The caller owns the descriptor and may share it."""

    def __init__(self, descriptor: int, name: str, *, prefix: bytes = b"", bytes_max: int = _BYTES_MAX) -> None:
        self._descriptor = descriptor
        self._prefix = prefix
        self._bytes_max = bytes_max
        self._pieces: deque[bytes] = deque()
        self._queued_bytes = 0
        self._reported = 0
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
                self.dropped_count += 1
                return
            self._pieces.append(piece)
            self._queued_bytes += len(piece)
            self._changed.notify()

    def _run(self) -> None:
        while (piece := self._next()) is not None:
            try:
                self._put(memoryview(self._prefix + piece))
            except OSError:
                # A closed terminal or a full disk. Go on: the disk may have space again for the next piece.
                with self._changed:
                    self.dropped_count += 1

    def _put(self, view: memoryview) -> None:
        while view:
            try:
                # os.write and not a buffered file: the interpreter takes the lock of a buffered file when it exits.
                view = view[os.write(self._descriptor, view) :]
            except BlockingIOError:
                # Another process that shares this descriptor made it non-blocking.
                select.select([], [self._descriptor], [])

    def _next(self) -> bytes | None:
        with self._changed:
            while not self._pieces:
                if self._closing:
                    return None
                self._changed.wait()
            piece = self._pieces.popleft()
            self._queued_bytes -= len(piece)
            if unreported := self.dropped_count - self._reported:
                piece += f"[{unreported} pieces of output were dropped here]\n".encode()
                self._reported = self.dropped_count
            return piece

    def close(self, timeout_s: float = 1.0) -> None:
        """Write the queued pieces, for `timeout_s` at most. Later writes are dropped."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout_s)


class LogFile(BoundedWriter):
    """Appends to `path`. When the file is full it is renamed to `path.1`, which replaces an older one."""

    def __init__(self, path: Path, name: str, *, file_bytes: int = FILE_BYTES) -> None:
        """Open or create the file. Raises OSError."""
        self._path = path
        self._file_bytes = file_bytes
        descriptor = _open(path)
        self._size = os.fstat(descriptor).st_size
        super().__init__(descriptor, name)

    def _put(self, view: memoryview) -> None:
        if self._size and self._size + len(view) > self._file_bytes:
            self._rotate()
        self._size += len(view)
        super()._put(view)

    def _rotate(self) -> None:
        try:
            self._path.replace(previous(self._path))
            fresh = _open(self._path)
        except FileNotFoundError:
            fresh = _open(self._path)  # somebody removed the file; create it again
        # dup2 keeps the descriptor's number, which the writer's thread uses.
        os.dup2(fresh, self._descriptor, inheritable=False)
        os.close(fresh)
        self._size = os.fstat(self._descriptor).st_size

    def close(self, timeout_s: float = 1.0) -> None:
        """Close the writer, then the file. The file stays open if a write to it still hangs."""
        super().close(timeout_s)
        if not self._thread.is_alive():
            os.close(self._descriptor)


def previous(path: Path) -> Path:
    """Return the path of the log before this one."""
    return path.with_name(path.name + ".1")


def _open(path: Path) -> int:
    folder = path.parent
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    return run_files.open_file(folder.parent, f"{folder.name}/{path.name}", flags)
