"""The mapping of a group: lines of the ranks, numbers and statistics by leaf, and the copies of the gradients."""

from __future__ import annotations

import errno
import mmap
import os
from typing import Final

import torch

from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.ranks.exact import order
from tolariad.trainer.ranks.exact.layout import Layout
from tolariad.trainer.ranks.exact.meeting import LINE_BYTES
from tolariad.trainer.ranks.exact.told import TOLD_BYTES, Told

_PAGE: Final = 4096


class GradientMemory:
    """The parts of the mapping, as tensors. All ranks compute the same places from the same model and settings.

    `lines`: bytes [ranks * LINE_BYTES]. `numbers`: float64 [leaves, count]. `told`: what each leaf tells (told.py).
    `present`: bytes [slots, parameters], 1 if there is a gradient. `gradients`: bytes [slots, size of a copy].
    `updated`: bytes [leaves, tensors], 1 if the leaf has the statistic. `statistics`: bytes [leaves, size of a copy].
    """

    def __init__(
        self, descriptor: int | None, *, ranks: int, leaves: int, count: int, parameters: Layout, buffers: Layout
    ) -> None:
        """Map `descriptor`: an empty file in memory, or one that another rank has mapped so. None: memory of its own.

        `count`: numbers of a leaf. Raises SetupRefused if the machine has not enough memory.
        """
        slots = order.slots(leaves, ranks)
        # All zero at first, as a new file is. The large part last, at a page of its own.
        sizes = (
            ranks * LINE_BYTES,
            leaves * count * 8,
            slots * len(parameters.places),
            leaves * len(buffers.places),
            leaves * buffers.size,
            leaves * TOLD_BYTES,
            slots * parameters.size,
        )
        begins, end = [], 0
        for size in sizes:
            begins.append(end)
            end += -(-size // _PAGE) * _PAGE
        self.size = end
        mapped = _mapped(descriptor, end)
        whole = torch.frombuffer(mapped, dtype=torch.uint8)
        parts = [whole[begin : begin + size] for begin, size in zip(begins, sizes, strict=True)]
        self.lines = parts[0]
        self.numbers = parts[1].view(torch.float64).view(leaves, count)
        self.present = parts[2].view(slots, -1)
        self.updated = parts[3].view(leaves, -1) if buffers.places else parts[3].view(leaves, 0)
        self.statistics = parts[4].view(leaves, buffers.size)
        self.told = Told(memoryview(mapped)[begins[5] : begins[5] + sizes[5]])
        self.gradients = parts[6].view(slots, -1)


def _mapped(descriptor: int | None, size: int) -> mmap.mmap:
    """Return a shared mapping of a file, which is made long enough, or private memory."""
    if descriptor is None:
        return mmap.mmap(-1, size)
    if os.fstat(descriptor).st_size < size:
        try:
            # Not ftruncate: if the memory were missing at the first write, that write would kill the process.
            os.posix_fallocate(descriptor, 0, size)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.ENOMEM, errno.EFBIG):
                raise
            raise SetupRefused(
                f"the exact sums need {size / 2**20:.0f} MiB of shared memory, which the machine does not have "
                f"({error.strerror}). Set fewer leaves, or free memory"
            ) from error
    return mmap.mmap(descriptor, size)
