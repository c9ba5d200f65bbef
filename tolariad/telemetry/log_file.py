"""A log on disk that a run of weeks does not let grow for ever.

Promises: what `BoundedWriter` does, and that the file and the one before it take `file_bytes` each at most, and one piece
more. Pieces are never divided between files. It must not know: what the bytes mean.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from tolariad.telemetry.writer import BoundedWriter

# A trainer that prints a line of 100 bytes a step, 50 steps a second, fills one in four hours. Nobody reads further back
# than two of them: what matters of a run is in its journal.
FILE_BYTES: Final = 64 * 1024 * 1024


class LogFile(BoundedWriter):
    """Appends to `path`; when that is full it becomes `path` with `.1` behind it, in place of an earlier one."""

    def __init__(self, path: Path, name: str, *, file_bytes: int = FILE_BYTES) -> None:
        """Raises OSError."""
        self._path = path
        self._file_bytes = file_bytes
        descriptor = _open(path)
        self._size = os.fstat(descriptor).st_size
        super().__init__(descriptor, name)

    def _put(self, view: memoryview) -> None:
        if self._size and self._size + len(view) > self._file_bytes:
            self._begin_anew()
        self._size += len(view)
        super()._put(view)

    def _begin_anew(self) -> None:
        try:
            self._path.replace(previous(self._path))
            fresh = _open(self._path)
        except FileNotFoundError:
            fresh = _open(self._path)  # somebody took it away: as with any log, the next line begins it again
        os.dup2(fresh, self._descriptor, inheritable=False)
        os.close(fresh)
        self._size = os.fstat(self._descriptor).st_size

    def close(self, timeout_s: float = 1.0) -> None:
        """As for every writer; the file is closed with it, unless a write still hangs in it."""
        super().close(timeout_s)
        if not self._thread.is_alive():
            os.close(self._descriptor)


def previous(path: Path) -> Path:
    """Where the log before this one is."""
    return path.with_name(path.name + ".1")


def _open(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
