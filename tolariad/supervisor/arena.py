"""The snapshot arena: a memory file of the daemon that every trainer maps. Snapshots survive the trainer's death.

The file is created empty before the first trainer, and each trainer inherits it. Its size is set once, when a trainer
has reported what a snapshot needs, and then sealed, so that no mapping can lose its pages. Pages are allocated in the
background, because the first touch of a gigabyte takes seconds. After a trainer's death the snapshots are compared with
their digests. Promises: only threads of this module wait.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tolariad.core import messages as m
from tolariad.storage import CheckpointUnusable
from tolariad.storage.snapshot_slot import verify_slot

# Share of the free memory that snapshots may take. A run that grows later needs the rest.
_SHARE: Final = 0.25
_PIECE_BYTES: Final = 64 * 1024 * 1024
_PAGE: Final = 4096
_UNLIMITED: Final = 2**62


class _Closing(Exception):
    """The daemon is ending: stop the verification."""


class SnapshotArena:
    """The arena of one daemon. Trainers inherit `descriptor`."""

    def __init__(
        self, submit: Callable[[m.RingPrepared | m.SnapshotDiffers], None], free: Callable[[], int] | None = None
    ) -> None:
        """`submit` gets the results of `prepare` and `verify`, from other threads. `free`: returns free bytes."""
        self.descriptor = os.memfd_create("tolaria-snapshots", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self._submit = submit
        self._free = free or free_memory
        self._thread: threading.Thread | None = None
        self._looking: threading.Thread | None = None
        self._busy = False
        self._slot_bytes = 0
        self._closing = False
        # Orders come from the kernel's thread, `close` from another. Under this lock no thread starts after `close` has
        # begun, and `close` joins only threads that have started.
        self._lock = threading.Lock()

    def prepare(self, order: m.PrepareRing) -> None:
        """Set the size of the file, in the background. A second order to the same daemon is a no-op."""
        with self._lock:
            if self._thread is None and not self._closing:
                self._thread = threading.Thread(target=self._prepare, args=(order,), name="tolaria-ring", daemon=True)
                self._thread.start()

    def _prepare(self, order: m.PrepareRing) -> None:
        slot_bytes = -(-max(order.slot_bytes, 1) // _PAGE) * _PAGE
        room = int(self._free() * _SHARE) if order.memory is None else order.memory
        slots = min(order.slots, room // slot_bytes)
        if slots < 1:
            why = f"a snapshot needs {slot_bytes} bytes, but only {room} may be used (set snapshots.memory_gb)"
            self._submit(m.RingPrepared(slots=0, slot_bytes=slot_bytes, why=why))
            return
        try:
            self._allocate(slots * slot_bytes)
        except OSError as error:
            why = f"{slots} snapshots of {slot_bytes} bytes could not be allocated: {os.strerror(error.errno or 0)}"
            self._submit(m.RingPrepared(slots=0, slot_bytes=slot_bytes, why=why))
            return
        self._slot_bytes = slot_bytes
        if not self._closing:
            self._submit(m.RingPrepared(slots=slots, slot_bytes=slot_bytes))

    def verify(self, order: m.VerifySnapshot) -> None:
        """Compare a snapshot with its digests, in the background. Only a difference is reported.

        A no-op while another comparison runs.
        """
        with self._lock:
            if self._closing or not self._slot_bytes or self._busy:
                return
            self._busy = True
            self._looking = threading.Thread(target=self._verify, args=(order,), name="tolaria-ring-look", daemon=True)
            self._looking.start()

    def _verify(self, order: m.VerifySnapshot) -> None:
        different: CheckpointUnusable | None = None
        try:
            verify_slot(self.descriptor, order.slot, self._slot_bytes, order.table, self._go_on)
        except CheckpointUnusable as unusable:
            different = unusable
        except _Closing:
            return
        finally:
            # Clear before submitting: the answer may be an order to verify the next snapshot.
            self._busy = False
        if different is not None:
            self._submit(m.SnapshotDiffers(id=order.id, why=f"{different.file}: {different.why}"))

    def _go_on(self) -> None:
        if self._closing:
            raise _Closing

    def _allocate(self, size: int) -> None:
        os.ftruncate(self.descriptor, size)
        fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        for first in range(0, size, _PIECE_BYTES):
            if self._closing:
                return
            os.posix_fallocate(self.descriptor, first, min(_PIECE_BYTES, size - first))

    def close(self) -> None:
        """Stop the threads and close the file. Its memory is freed when the last process unmaps it."""
        with self._lock:
            self._closing = True
        for thread in (self._thread, self._looking):
            if thread is not None:
                thread.join()
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def free_memory() -> int:
    """Return the bytes this process can still allocate: the least of the machine's and the control groups' rest."""
    return min(_available(), *(_left_of_limit(folder) for folder in _own_groups()), _UNLIMITED)


def _available() -> int:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    kib = next((int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), 0)
    return kib * 1024


def _own_groups() -> list[Path]:
    """Return this process's control group and its parents; empty if there is no unified hierarchy."""
    try:
        entry = next(line for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::"))
    except (OSError, StopIteration):
        return []
    own = Path("/sys/fs/cgroup") / entry[3:].lstrip("/")
    return [own, *(parent for parent in own.parents if parent.is_relative_to("/sys/fs/cgroup"))]


def _left_of_limit(folder: Path) -> int:
    try:
        limit = (folder / "memory.max").read_text().strip()
        used = int((folder / "memory.current").read_text())
    except (OSError, ValueError):
        return _UNLIMITED
    return _UNLIMITED if limit == "max" else max(0, int(limit) - used)
