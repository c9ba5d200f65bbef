"""Pinned host memory, to and from which a CUDA device copies while the host continues.

Torch's allocator for pinned memory rounds a size up to a power of two, and never gives memory back to the system. So
ordinary memory is pinned here where it lies. Promise: memory that cannot be pinned is used as it is. Copies then take
longer.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import torch

if TYPE_CHECKING:
    from torch import Tensor

_log: Final = logging.getLogger(__name__)


def pin(memory: Tensor) -> bool:
    """Pin contiguous memory of this process. Return whether that was possible. Call `unpin` before it is unmapped."""
    if not memory.numel():
        return False
    try:
        refused: object = int(torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.nbytes, 0))
    except (AssertionError, AttributeError, RuntimeError, TypeError) as error:
        refused = str(error) or "unknown"
    if refused:
        # The error stays noted in the runtime, and the next kernel would report it.
        with suppress(RuntimeError):
            torch.zeros((), device="cuda")
        _log.warning(
            "%d bytes for checkpoints cannot be pinned (CUDA says %s): copies are slower", memory.nbytes, refused
        )
    return not refused


def unpin(memory: Tensor) -> None:
    """Let the system move memory again that `pin` returned True for."""
    torch.cuda.cudart().cudaHostUnregister(memory.data_ptr())
