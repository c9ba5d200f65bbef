"""The numbers of a backward pass: on the host, or in flight from a device.

Promise: loss and norm are transferred together, and nothing waits for them before they are read.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import torch

if TYPE_CHECKING:
    from tolariad.core.calc.settings.model import Settings
    from tolariad.trainer.checkpoints.snapshot import Position


class Measured(msgspec.Struct, frozen=True, gc=False):
    """The numbers on the host. `overflow`: fp16 gradients are not finite, so no update may be made."""

    loss: float
    grad_norm: float
    overflow: bool = False

    def read(self) -> Measured:
        """Return these numbers; `InFlight` has the same method."""
        return self


def measured(loss: float, norm: float, overflow: float = 0.0) -> Measured:
    """Return the numbers with every NaN replaced by one NaN: its bits may differ from process to process."""
    # Only NaN differs from itself; this avoids a call.
    loss = loss if loss == loss else math.nan  # noqa: PLR0124
    return Measured(loss, norm if norm == norm else math.nan, overflow > 0)  # noqa: PLR0124


class Transfer:
    """Values in flight from a device. The copy runs after their computation, while the host continues."""

    def __init__(self, values: torch.Tensor) -> None:
        """`values` are on a CUDA device; a copy on another device is made at once."""
        on_cuda = values.device.type == "cuda"
        self._host = torch.empty(values.shape, dtype=values.dtype, pin_memory=on_cuda)
        self._host.copy_(values, non_blocking=on_cuda)
        self._arrived = torch.cuda.Event() if on_cuda else None
        if self._arrived is not None:
            self._arrived.record(torch.cuda.current_stream(values.device))

    def read(self) -> list[float]:
        """Wait for the transfer, and return the values."""
        if self._arrived is not None:
            self._arrived.synchronize()
        values: list[float] = self._host.tolist()
        return values


class InFlight:
    """The numbers in flight from a device."""

    def __init__(self, values: torch.Tensor) -> None:
        """`values`: loss, norm and, for fp16, whether gradients overflowed; float64, on a CUDA device."""
        self._transfer = Transfer(values)

    def read(self) -> Measured:
        """Wait for the transfer, and return the numbers."""
        return measured(*self._transfer.read())


class Given(NamedTuple):
    """The metrics of a step, in the order of the run's names. `late`: places of those that are in flight."""

    row: list[float]
    late: list[tuple[tuple[int, ...], Transfer]]

    def read(self) -> tuple[float, ...]:
        """Return the values, NaN for those that the step does not have. Waits for those in flight."""
        for slots, transfer in self.late:
            for slot, value in zip(slots, transfer.read(), strict=True):
                self.row[slot] = float(value)
        return tuple(self.row)


class PendingStep(NamedTuple):
    """A step that was made but is not reported yet: its numbers, the position at its end, its rates, its metrics.

    `data`: the digest of its batches.
    """

    found: Measured | InFlight
    position: Position
    rates: tuple[float, ...]
    metrics: Given | None
    data: int = 0


def reads_late(settings: Settings, device: torch.device) -> bool:
    """Return whether a step's loss is read while the next step computes: if nothing needs it before the update."""
    return device.type == "cuda" and settings.precision != "fp16" and not settings.detect.sync
