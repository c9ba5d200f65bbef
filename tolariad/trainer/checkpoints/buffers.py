"""Host memory that captures are copied into, used again and again.

Memory that is touched for the first time costs several times the copy; so there is one buffer, as large as the largest
state so far, and it is filled in ahead of time in the background. Pinned where tensors come from a CUDA device.
It must not know: what is copied.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import threading
from typing import TYPE_CHECKING, Final

import torch

if TYPE_CHECKING:
    from tolariad.storage.tensor_file import TensorEntry

_ALIGNMENT: Final = 4096
_TOUCH_BYTES: Final = 4 * 1024 * 1024
_MADV_WIPEONFORK: Final = 18  # Linux 4.14; `mmap` has no name for it


class HostBuffer:
    """One piece of memory of its own; `take` hands it out from the beginning."""

    def __init__(self, *, pinned: bool = False) -> None:
        self._pinned = pinned
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._used = 0
        self._filling: threading.Thread | None = None

    @property
    def size(self) -> int:
        """Bytes it has."""
        return self._memory.numel()

    def reserve(self, size: int) -> None:
        """Have at least `size` bytes; what was handed out before is not this buffer's any more where it has to grow."""
        self.wait()
        if size > self.size:
            self._memory = torch.empty(size, dtype=torch.uint8, pin_memory=True) if self._pinned else _mapped(size)
        self._used = 0

    def reserve_ahead(self, size: int) -> None:
        """The same, with every page touched, in the background."""

        def fill() -> None:
            memory = torch.empty(size, dtype=torch.uint8, pin_memory=True) if self._pinned else _mapped(size)
            for first in range(0, 0 if self._pinned else size, _TOUCH_BYTES):
                ctypes.memset(memory.data_ptr() + first, 0, min(_TOUCH_BYTES, size - first))
            self._memory = memory

        if size > self.size:
            self.wait()
            self._filling = threading.Thread(target=fill, name="checkpoint-memory", daemon=True)
            self._filling.start()

    def wait(self) -> None:
        """Return when nothing goes on in the background."""
        if self._filling is not None:
            self._filling.join()
            self._filling = None

    def take(self, size: int) -> torch.Tensor:
        """The next `size` bytes, aligned for any dtype. Raises ValueError where they were not reserved."""
        first = self._used
        if first + size > self.size:
            raise ValueError(f"{size} bytes at {first} of a buffer of {self.size}")
        self._used += room_of(size)
        return self._memory[first : first + size]


def room_of(size: int) -> int:
    """What `take(size)` uses up."""
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _mapped(size: int) -> torch.Tensor:
    """Anonymous memory, in huge pages where the system gives them."""
    # Private: memory that could be shared is given huge pages only where the system was told to.
    mapped = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # No worker of a loader has a use for it, and pages that one has too would be copied when they are written next. The
    # range itself must be there, though: a worker that lets go of its buffer would unmap whatever else had come to lie there.
    with contextlib.suppress(OSError):
        mapped.madvise(_MADV_WIPEONFORK)
    with contextlib.suppress(OSError):
        mapped.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(mapped, dtype=torch.uint8)


def view(memory: torch.Tensor, first: int, entry: TensorEntry, dtype: torch.dtype) -> torch.Tensor:
    """The tensor that lies `first` bytes into `memory`."""
    flat = memory[first : first + entry.size]
    return flat.view(dtype).view(entry.shape)
