"""What a backward pass showed: the numbers on the host, or on their way from a device.

Promise: loss and norm reach the host in one transfer, and nobody waits for it before they are read.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec
import torch

if TYPE_CHECKING:
    from tolariad.core.settings.model import Settings


class Measured(msgspec.Struct, frozen=True, gc=False):
    """What a backward pass showed, on the host. `overflow`: fp16 gradients are not finite, no update may be made."""

    loss: float
    grad_norm: float
    overflow: bool = False

    def read(self) -> Measured:
        """The numbers are here."""
        return self


def measured(loss: float, norm: float, overflow: float = 0.0) -> Measured:
    """With one NaN for all of them: which bits a NaN has may change from one process to the next."""
    # Without a call: of all values only one that is not a number differs from itself.
    loss = loss if loss == loss else math.nan  # noqa: PLR0124
    return Measured(loss, norm if norm == norm else math.nan, overflow > 0)  # noqa: PLR0124


class InFlight:
    """The same, on its way from a device: copied behind what computes it, while the host goes on."""

    def __init__(self, values: torch.Tensor) -> None:
        """`values`: loss, norm and, for fp16, whether gradients overflowed; float64, on a CUDA device."""
        self._host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        self._host.copy_(values, non_blocking=True)
        self._arrived = torch.cuda.Event()
        self._arrived.record(torch.cuda.current_stream(values.device))

    def read(self) -> Measured:
        """Wait until they have arrived."""
        self._arrived.synchronize()
        return measured(*self._host.tolist())


def reads_late(settings: Settings, device: torch.device) -> bool:
    """Is a step's loss read while the next one computes? Not where something has to be known before the update."""
    return device.type == "cuda" and settings.precision != "fp16" and not settings.detect.sync
