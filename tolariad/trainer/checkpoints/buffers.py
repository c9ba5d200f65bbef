"""Host memory for captures, reused for each one.

The first access to a page costs several times as much as the copy. So there is one buffer, as large as the largest
state so far, whose pages are touched ahead of time in the background. The memory is pinned if tensors come from a CUDA
device, so that copies are as fast as the bus.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import threading
from typing import TYPE_CHECKING, Final

import torch

from tolariad.trainer.checkpoints.pinned import pin, unpin
from tolariad.trainer.process.threads import same_device

if TYPE_CHECKING:
    from tolariad.storage.snapshot_slot import TensorRow
    from tolariad.storage.tensor_file import TensorEntry

_ALIGNMENT: Final = 4096
_TOUCH_BYTES: Final = 4 * 1024 * 1024
_MADV_WIPEONFORK: Final = 18  # Linux 4.14; `mmap` has no name for it


class HostBuffer:
    """One piece of memory. `take` returns parts of it, from the beginning."""

    def __init__(self, *, pinned: bool = False) -> None:
        self._wants_pinned = pinned
        self._is_pinned = False
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._used = 0
        self._filling: threading.Thread | None = None

    @property
    def size(self) -> int:
        """The size in bytes."""
        return self._memory.numel()

    def reserve(self, size: int) -> None:
        """Make the buffer at least `size` bytes large. If it grows, parts taken before do not belong to it any more."""
        self.wait()
        if size > self.size:
            self._use(_mapped(size))
        self._used = 0

    def reserve_ahead(self, size: int) -> None:
        """Do the same in the background, and touch every page."""
        take_device = same_device()

        def fill() -> None:
            take_device()
            memory = _mapped(size)
            for first in range(0, size, _TOUCH_BYTES):
                ctypes.memset(memory.data_ptr() + first, 0, min(_TOUCH_BYTES, size - first))
            self._use(memory)

        if size > self.size:
            self.wait()
            self._filling = threading.Thread(target=fill, name="checkpoint-memory", daemon=True)
            self._filling.start()

    def _use(self, memory: torch.Tensor) -> None:
        """Use other memory from now on, pinned if that is wanted."""
        if self._is_pinned:
            unpin(self._memory)
        self._is_pinned = self._wants_pinned and pin(memory)
        self._memory = memory

    def wait(self) -> None:
        """Wait until the work in the background is done."""
        if self._filling is not None:
            self._filling.join()
            self._filling = None

    def release(self) -> None:
        """Give the memory back; the next `reserve` makes it anew."""
        self.wait()
        self._use(torch.empty(0, dtype=torch.uint8))
        self._used = 0

    def take(self, size: int) -> torch.Tensor:
        """Return the next `size` bytes, aligned for any dtype. Raises ValueError if they were not reserved."""
        first = self._used
        if first + size > self.size:
            raise ValueError(f"{size} bytes at offset {first} exceed the buffer of {self.size} bytes")
        self._used += room_of(size)
        return self._memory[first : first + size]


def room_of(size: int) -> int:
    """Return the bytes that `take(size)` uses."""
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _mapped(size: int) -> torch.Tensor:
    """Return anonymous memory, in huge pages if the system provides them."""
    # A private mapping: shared memory gets huge pages only if the system is configured for it.
    mapped = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # DataLoader workers do not need the pages, and pages shared with a worker would be copied at the next write. The
    # range must stay mapped in the worker: when it frees its buffer, it would unmap whatever had been placed there.
    with contextlib.suppress(OSError):
        mapped.madvise(_MADV_WIPEONFORK)
    with contextlib.suppress(OSError):
        mapped.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(mapped, dtype=torch.uint8)


def view(memory: torch.Tensor, first: int, entry: TensorEntry | TensorRow, dtype: torch.dtype) -> torch.Tensor:
    """Return the tensor at offset `first` of `memory`."""
    flat = memory[first : first + entry.size]
    return flat.view(dtype).view(entry.shape)
