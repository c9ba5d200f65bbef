"""Spares: segment files filled with zeros before they are needed.

Writing zeros first makes every later write 1.5 to 2 times as fast. The file system must otherwise convert or allocate
each block, through its own journal, at the block's first write. The zeros also prove that the end of a segment is
empty. And a full disk is noticed here, so no event is lost, and not in a commit.

Readers ignore the name of a spare. The writer puts the segment's head into the spare and then renames it. One
background thread keeps one spare ready, as long as the next segment will be. It writes in pieces with pauses between
them: 100 MB at once would delay the journal's own writes by tens of milliseconds.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import mmap
import os
import threading
import time
from pathlib import Path
from typing import Final

from journal.files import Files, write_all

SPARE_SUFFIX: Final = ".tmp"
# 1 MiB each 20 ms is 50 MB/s. A spare then takes two seconds and hardly delays the journal's own writes.
_PIECE_BYTES: Final = 1 << 20
# Page-aligned memory, as O_DIRECT requires. It stays zero because nothing writes to it.
_PIECE: Final = memoryview(mmap.mmap(-1, _PIECE_BYTES)).toreadonly()
_PAUSE_S: Final = 0.02
_NICE: Final = 10
_RETRY_S: Final = 5.0


def be_nice() -> None:
    """Give the calling thread the ordinary class and a low priority, whatever its parent thread had."""
    # A new thread inherits its parent's class. Filling disks under SCHED_FIFO would delay the trainer.
    with contextlib.suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)


class SpareMaker:
    """Makes spares in one folder, ahead in the size of the next segment. The writer thread calls `take`.

    The background thread only fills. A ready spare always has `_spare_bytes`, the size that the next `take` is expected
    to ask for.
    """

    def __init__(self, files: Files, folder: Path, spare_bytes: int, block: int = 512) -> None:
        self._files = files
        self._folder = folder
        self._block = block
        self._spare_bytes = spare_bytes
        self._numbers = itertools.count(1)
        # Protects `_ready`, which the writer takes and the thread fills, and the size that it has.
        self._condition = threading.Condition()
        self._ready: Path | None = None
        self._reserved: tuple[int, Path] | None = None  # used by the writer thread only
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self.last_error: str | None = None

    @property
    def ready(self) -> bool:
        """Whether a spare is ready."""
        return self._ready is not None

    def remove_leftovers(self) -> None:
        """Remove the spares of a crashed writer. A spare that may not be all zeros must not be used."""
        for name in self._files.names(self._folder):
            if name.endswith(SPARE_SUFFIX):
                self._files.unlink(self._folder / name)

    def resize(self, spare_bytes: int) -> None:
        """Make spares of another size from now on. Call only before `start` and before the first spare."""
        self._spare_bytes = spare_bytes

    def reserve(self, size: int) -> None:
        """Ensure that the next `take` of this size needs no more space. Raises OSError."""
        # A ready spare is enough. It cannot vanish: only the writer thread takes it.
        if self._ready is None or size != self._spare_bytes:
            reserved, self._reserved = self._reserved, None
            if reserved is not None and reserved[0] != size:
                # It was reserved for another batch. Free its space before making the next one.
                self.discard(reserved[1])
                reserved = None
            self._reserved = reserved or (size, self._make(size, pause_s=0.0))

    def take(self, size: int, following: int) -> Path:
        """Return a spare of exactly this size: one made ahead, or one made in this thread. Raises OSError.

        `following`: the size that the next `take` will probably ask for.
        """
        reserved, self._reserved = self._reserved, None
        offered = [reserved] if reserved is not None else []
        with self._condition:
            known, self._spare_bytes = self._spare_bytes, following
            is_wanted = size == known and size not in dict(offered)
            if self._ready is not None and (is_wanted or following != known):
                offered.append((known, self._ready))
                # The thread wakes and fills the next one in the background.
                self._ready = None
                self._condition.notify_all()
        taken = None
        for length, spare in offered:
            # Exactly: the length is in the segment's header, and a file of any other length is damaged.
            if taken is None and length == size:  # safety: spare-has-length-asked-for
                taken = spare
            else:
                self.discard(spare)
        # If the thread is still filling one, the writer does not wait for its pauses. It makes its own at full speed.
        return taken or self._make(size, pause_s=0.0)

    def prepare(self) -> bool:
        """Make a spare now unless one is ready. Return whether one is ready; an OSError goes to `last_error`."""
        if self._ready is None:
            self._fill(pause_s=0.0)
        return self._ready is not None

    def start(self) -> None:
        """Start the background thread; a second call does nothing."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="journal-spare", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stop the thread and remove the spare. The next writer makes its own."""
        # Set the flag before waking the thread; it checks the flag before it sleeps again.
        self._stopping.set()
        with self._condition:
            self._condition.notify_all()
        if self._thread is not None:
            self._thread.join()
        # A spare is not worth keeping: a next start could not know whether all of it is zero.
        ready, self._ready = self._ready, None
        reserved, self._reserved = self._reserved, None
        for spare in (ready, reserved[1] if reserved is not None else None):
            if spare is not None:
                self.discard(spare)

    def discard(self, path: Path) -> None:
        """Remove a spare that will not be used. If that fails, the next start removes it."""
        # No error of a leftover may become the error of a commit.
        with contextlib.suppress(OSError):
            self._files.unlink(path)

    def _run(self) -> None:
        be_nice()
        while not self._stopping.is_set():
            if self._ready is None and not self._fill(pause_s=_PAUSE_S):
                # Probably a full disk. Try again later; the writer does not wait for this thread.
                self._stopping.wait(_RETRY_S)
            with self._condition:
                while self._ready is not None and not self._stopping.is_set():
                    self._condition.wait()

    def _fill(self, pause_s: float) -> bool:
        size = self._spare_bytes
        try:
            if pause_s and (free := self._files.free_bytes(self._folder)) < size:
                # Do not even begin: until it failed, it would take space that a checkpoint may need.
                raise OSError(errno.ENOSPC, f"{free} bytes are free, a segment takes {size}")
            made: Path | None = self._make(size, pause_s)
        except OSError as error:
            self.last_error = str(error)
            return False
        self.last_error = None
        # The writer thread's `prepare` may have made one at the same time. One spare is enough. It may also expect
        # another size by now: the next segment is then a longer one.
        with self._condition:
            if size == self._spare_bytes:  # safety: spare-as-long-as-expected
                self._ready, made = made, self._ready
            surplus = made
        if surplus is not None:
            self.discard(surplus)
        return True

    def _make(self, size: int, pause_s: float) -> Path:
        # Each spare has a name of its own, so the thread and the writer can make one at the same time.
        path = self._folder / f"spare-{next(self._numbers)}{SPARE_SUFFIX}"
        descriptor = self._files.create(path)
        try:
            self._write_zeros(descriptor, size, pause_s)
            # Each piece is already durable. This sync makes the length and the allocation durable too, so that no later
            # commit has to pay for them.
            self._files.fsync(descriptor)
        except OSError:
            self.discard(path)  # free its space at once: a lack of space is the probable cause
            raise
        finally:
            self._files.close(descriptor)
        return path

    def _write_zeros(self, descriptor: int, size: int, pause_s: float) -> None:
        for at in range(0, size, _PIECE_BYTES):
            # Only the background thread stops early: the writer needs its spare also while the journal is being
            # closed.
            if pause_s and self._stopping.is_set():
                raise InterruptedError("stopped while making a spare")
            if at == _PIECE_BYTES and size % self._block == 0:
                # From the second piece on, because only a file with content shows whether O_DIRECT works. If it does
                # not, the zeros go through the page cache.
                with contextlib.suppress(OSError):
                    self._files.make_direct(descriptor, self._block)
            write_all(self._files, descriptor, _PIECE[: size - at], at)  # safety: spares-filled-with-zeros
            if pause_s:
                time.sleep(pause_s)
