"""Limit the rate at which a file is written, for the journal on the same disk.

If a gigabyte is buffered and synced at its end, every durable append after it waits for all of it. Here dirty data
stays small: each piece is sent to the disk as soon as it is written. With a limit, each piece also waits for the one
before it and for its turn.
"""

from __future__ import annotations

import ctypes
import errno
import os
import threading
import time
from collections.abc import Callable
from typing import Final, Protocol, TypeAlias

from tolariad.core.calc.checkpoints.pacing import LEAST_PIECE, MOST_PIECE, Beside, Pacing, after

_START: Final = 2  # SYNC_FILE_RANGE_WRITE
_START_AND_WAIT: Final = 7  # WAIT_BEFORE | WRITE | WAIT_AFTER

Tick: TypeAlias = Callable[[], None]

_libc = ctypes.CDLL(None, use_errno=True)
_sync_file_range = _libc.sync_file_range
_sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)


def _write_out(descriptor: int, offset: int, size: int, how: int) -> None:
    """Call sync_file_range(2). It writes no metadata, so it does not commit the file system's journal."""
    if _sync_file_range(descriptor, offset, size, how) == 0:
        return
    number = ctypes.get_errno()
    # The file system does not support the call. The sync at the end of the file then writes everything.
    if number not in {errno.ENOSYS, errno.EINVAL, errno.ESPIPE, errno.EOPNOTSUPP}:
        raise OSError(number, os.strerror(number))


class Pace:
    """Limits writing to `bytes_s` bytes a second; None: no limit. `tick` is called before each piece and may raise.

    `waited_s` is the total time for which the caller has waited because of the limit.
    """

    def __init__(self, bytes_s: float | None = None, tick: Tick = lambda: None) -> None:
        self._bytes_s = bytes_s
        self._tick = tick
        self._due = 0.0
        self._before = 0
        self.waited_s = 0.0

    @property
    def piece_bytes(self) -> int:
        """The number of bytes to write at a time."""
        return LEAST_PIECE if self._bytes_s else MOST_PIECE

    def lift(self) -> None:
        """Remove the limit. Any thread may call this."""
        self._bytes_s = None

    def wait(self, size: int) -> None:
        """Wait until `size` more bytes may be written."""
        self._tick()
        bytes_s = self._bytes_s
        if bytes_s is None:
            return
        now = time.monotonic()
        if self._due > now:
            time.sleep(self._due - now)
            self.waited_s += self._due - now
        # No more unused time is saved up than that of one piece: the limit exists to prevent bursts.
        of_piece = size / bytes_s
        self._due = max(self._due, now - of_piece) + of_piece

    def written(self, descriptor: int, offset: int, size: int) -> None:
        """Start writing out the last piece. With a limit, wait until the piece before it is on the disk."""
        _write_out(descriptor, offset, size, _START)
        if self._bytes_s is not None and offset:
            before = min(offset, self._before)
            _write_out(descriptor, offset - before, before, _START_AND_WAIT)
        self._before = size


class Neighbours(Protocol):
    """Measures training and the journal beside a checkpoint that is being written. Its writer calls the methods."""

    def begin(self) -> None:
        """Begin a checkpoint: what is usual was measured before it."""

    def note(self) -> None:
        """Look at training and journal. Called before each piece."""

    def seen(self, size: int) -> Beside | None:
        """Return the measurements since the last ones, in which `size` bytes were written, and begin anew.

        None: too little is known yet; nothing begins anew.
        """


class AdaptivePace(Pace):
    """A limit that follows what is measured beside the checkpoint (`core.calc.checkpoints.pacing`).

    `settled` is called with each new limit: the next checkpoint begins with the last one.
    """

    def __init__(self, pacing: Pacing, beside: Neighbours, settled: Callable[[Pacing], None], tick: Tick) -> None:
        super().__init__(pacing.bytes_s, tick)
        self._pacing, self._beside, self._settled = pacing, beside, settled
        self._lifted = threading.Event()
        self._written = 0
        beside.begin()

    @property
    def piece_bytes(self) -> int:
        """The number of bytes to write at a time. The disk is never asked for more than two pieces at once."""
        return self._pacing.piece_bytes

    def lift(self) -> None:
        """Remove the limit. Any thread may call this."""
        self._lifted.set()
        super().lift()

    def wait(self, size: int) -> None:
        """Wait until `size` more bytes may be written. The limit may change then."""
        super().wait(size)
        self._beside.note()
        seen = self._beside.seen(self._written)
        self._written += size
        if seen is None or self._lifted.is_set():
            return
        self._written = size
        self._pacing = after(self._pacing, seen)
        self._settled(self._pacing)
        self._bytes_s = self._pacing.bytes_s
        if self._lifted.is_set():  # just now, by another thread
            super().lift()
