"""How fast a file is written beside a journal on the same disk.

A buffered gigabyte with one sync at its end makes every durable append behind it wait for all of it. Here dirty data never
piles up: each piece is sent to the disk as soon as it is written, and with a limit the next one waits for the one before
it and for its turn. It must not know: what is written.
"""

from __future__ import annotations

import ctypes
import errno
import os
import time
from collections.abc import Callable
from typing import Final

_START: Final = 2  # SYNC_FILE_RANGE_WRITE
_START_AND_WAIT: Final = 7  # WAIT_BEFORE | WRITE | WAIT_AFTER
# Not less than a large page of the page cache.
_SLOW_BYTES: Final = 2 * 1024 * 1024
_FAST_BYTES: Final = 8 * 1024 * 1024

_libc = ctypes.CDLL(None, use_errno=True)
_sync_file_range = _libc.sync_file_range
_sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)


def _write_out(descriptor: int, offset: int, size: int, how: int) -> None:
    """sync_file_range(2); it touches no metadata, so it commits nothing of the file system's own journal."""
    if _sync_file_range(descriptor, offset, size, how) == 0:
        return
    number = ctypes.get_errno()
    # A file system that has no such thing: the sync at the file's end does it all.
    if number not in {errno.ENOSYS, errno.EINVAL, errno.ESPIPE, errno.EOPNOTSUPP}:
        raise OSError(number, os.strerror(number))


class Pace:
    """`bytes_s` at most; None: as fast as the disk takes it. `tick` is called before each piece and may raise.

    `waited_s`: how long it made its caller wait, so that others have the disk.
    """

    def __init__(self, bytes_s: float | None = None, tick: Callable[[], None] = lambda: None) -> None:
        self._bytes_s = bytes_s
        self._tick = tick
        self._due = 0.0
        self.waited_s = 0.0

    @property
    def piece_bytes(self) -> int:
        """How much is written at a time."""
        return _SLOW_BYTES if self._bytes_s else _FAST_BYTES

    def lift(self) -> None:
        """From now on as fast as the disk takes it; another thread may say so."""
        self._bytes_s = None

    def wait(self, size: int) -> None:
        """Return when `size` more bytes may be written."""
        self._tick()
        bytes_s = self._bytes_s
        if bytes_s is None:
            return
        now = time.monotonic()
        if self._due > now:
            time.sleep(self._due - now)
            self.waited_s += self._due - now
        # What was not used is not saved up: a burst is what the limit is there to prevent.
        self._due = max(self._due, now) + size / bytes_s

    def written(self, descriptor: int, offset: int, size: int) -> None:
        """Send what was just written on its way; with a limit, wait for what was written before it."""
        _write_out(descriptor, offset, size, _START)
        if self._bytes_s is not None and offset:
            before = min(offset, _SLOW_BYTES)
            _write_out(descriptor, offset - before, before, _START_AND_WAIT)
