"""A step that was made but is not reported yet, because its numbers are in flight from a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tolariad.trainer.checkpoints.snapshot import Position
    from tolariad.trainer.step.measured import InFlight, Measured


class PendingStep(NamedTuple):
    """A step that is not reported yet: its numbers, the position at its end, its rates."""

    found: Measured | InFlight
    position: Position
    rates: tuple[float, ...]
