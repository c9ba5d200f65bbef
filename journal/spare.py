"""Zero-written segment files, made before they are needed.

Writing zeros first is worth a factor of 1.5 to 2 on every later write: a block that was only allocated, or not even
that, must be converted through the file system's own journal when it is first written. It also makes the tail of a
segment provably empty, and a full disk strikes here, where nothing is at stake, instead of in a commit.

A spare has a name that no reader looks at, until the writer has put the segment's head into it and renames it. One
background thread keeps one ready. It writes in pieces with pauses between them: 100 MB at once would hold up the
journal's own writes by tens of milliseconds.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import mmap
import threading
import time
from pathlib import Path
from typing import Final

from journal.background import be_nice
from journal.files import Files, write_all

SPARE_SUFFIX: Final = ".tmp"
# 1 MiB each 20 ms is 50 MB/s: a spare in two seconds, and little in the way of the journal's own writes.
_PIECE_BYTES: Final = 1 << 20
# Memory that begins at a page, as O_DIRECT wants it, and stays zero: it is never written to.
_PIECE: Final = memoryview(mmap.mmap(-1, _PIECE_BYTES)).toreadonly()
_PAUSE_S: Final = 0.02
_RETRY_S: Final = 5.0


class SpareMaker:
    """Makes spares of one size in one folder. `take` is the writer thread's; the background thread only fills."""

    def __init__(self, files: Files, folder: Path, spare_bytes: int, block: int = 512) -> None:
        self._files = files
        self._folder = folder
        self._block = block
        self._spare_bytes = spare_bytes
        self._numbers = itertools.count(1)
        self._condition = threading.Condition()
        self._ready: Path | None = None
        self._reserved: tuple[int, Path] | None = None  # the writer thread's alone
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self.last_error: str | None = None

    @property
    def ready(self) -> bool:
        """Whether a spare is waiting."""
        return self._ready is not None

    def remove_leftovers(self) -> None:
        """Remove what a crashed writer left: a spare that is not known to be all zero is of no use."""
        for name in self._files.names(self._folder):
            if name.endswith(SPARE_SUFFIX):
                self._files.unlink(self._folder / name)

    def resize(self, spare_bytes: int) -> None:
        """Make spares of another size from now on; the caller has neither a spare nor a thread yet."""
        self._spare_bytes = spare_bytes

    def reserve(self, size: int) -> None:
        """See to it that the next `take` of this size needs no space. Raises OSError."""
        if self._ready is None or size > self._spare_bytes:
            if self._reserved is not None and self._reserved[0] >= size:
                return
            size = max(size, self._spare_bytes)
            self._reserved = size, self._make(size, pause_s=0.0)

    def take(self, size: int) -> Path:
        """The spare, if there is one and `size` fits; else one made here and now. Raises OSError."""
        reserved, self._reserved = self._reserved, None
        if reserved is not None:
            if reserved[0] >= size:
                return reserved[1]
            self.discard(reserved[1])
        # If the thread is in the middle of one, the writer does not wait for its pauses: it makes its own, flat out.
        with self._condition:
            ready = self._ready
            if ready is not None and size <= self._spare_bytes:
                self._ready = None
                self._condition.notify_all()
                return ready
        return self._make(max(size, self._spare_bytes), pause_s=0.0)

    def prepare(self) -> bool:
        """Make a spare now unless there is one. Returns whether there is one; OSError becomes False and `last_error`."""
        if self._ready is None:
            self._fill(pause_s=0.0)
        return self._ready is not None

    def start(self) -> None:
        """Start the background thread; a second call does nothing."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="journal-spare", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stop the thread and remove the spare: the next writer makes its own."""
        self._stopping.set()
        with self._condition:
            self._condition.notify_all()
        if self._thread is not None:
            self._thread.join()
        ready, self._ready = self._ready, None
        reserved, self._reserved = self._reserved, None
        for spare in (ready, reserved[1] if reserved is not None else None):
            if spare is not None:
                self.discard(spare)

    def discard(self, path: Path) -> None:
        """Remove a spare that will not be used. One that cannot be removed is removed at the next start."""
        with contextlib.suppress(OSError):
            self._files.unlink(path)

    def _run(self) -> None:
        be_nice()
        while not self._stopping.is_set():
            if self._ready is None and not self._fill(pause_s=_PAUSE_S):
                self._stopping.wait(_RETRY_S)  # a full disk: look again later, the writer is not waiting for us
            with self._condition:
                while self._ready is not None and not self._stopping.is_set():
                    self._condition.wait()

    def _fill(self, pause_s: float) -> bool:
        try:
            if pause_s and (free := self._files.free_bytes(self._folder)) < self._spare_bytes:
                # Not even begun: what it would take until it fails may be what a checkpoint needs.
                raise OSError(errno.ENOSPC, f"{free} bytes are free, a segment takes {self._spare_bytes}")
            made = self._make(self._spare_bytes, pause_s)
        except OSError as error:
            self.last_error = str(error)
            return False
        self.last_error = None
        with self._condition:
            self._ready, surplus = made, self._ready
        if surplus is not None:
            self.discard(surplus)
        return True

    def _make(self, size: int, pause_s: float) -> Path:
        # Each has a name of its own, so the thread and the writer can make one at the same time.
        path = self._folder / f"spare-{next(self._numbers)}{SPARE_SUFFIX}"
        descriptor = self._files.create(path)
        try:
            self._write_zeros(descriptor, size, pause_s)
            # The data is durable piece by piece; this is for the length and the allocation.
            self._files.fsync(descriptor)
        except OSError:
            self.discard(path)  # give its space back at once: it is probably space that is missing
            raise
        finally:
            self._files.close(descriptor)
        return path

    def _write_zeros(self, descriptor: int, size: int, pause_s: float) -> None:
        for at in range(0, size, _PIECE_BYTES):
            if pause_s and self._stopping.is_set():
                raise InterruptedError("stopped while making a spare")
            if at == _PIECE_BYTES and size % self._block == 0:
                # From the second piece on, since only a file that holds something tells whether it works. Where it does
                # not, the page cache takes the zeros.
                with contextlib.suppress(OSError):
                    self._files.make_direct(descriptor, self._block)
            write_all(self._files, descriptor, _PIECE[: size - at], at)
            if pause_s:
                time.sleep(pause_s)
