"""A log file of bounded size, for runs of weeks.

Promises: those of `BoundedWriter`. Also: the file and its predecessor each take at most `file_bytes` and one piece. A
piece is never split between two files.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from tolariad import run_files
from tolariad.telemetry.writer import BoundedWriter

# A trainer that prints 100 bytes a step at 50 steps a second fills a file in four hours. Two files are enough: the
# journal holds the history of the run.
FILE_BYTES: Final = 64 * 1024 * 1024


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
