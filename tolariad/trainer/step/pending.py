"""A step that was made and is not reported yet, since its numbers are on their way from a device.

It must not know: when they arrive, or what is done with the report.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tolariad.trainer.checkpoints.snapshot import Position
    from tolariad.trainer.step.measured import InFlight, Measured


class PendingStep(NamedTuple):
    """What it found, where it ended, the rates it used."""

    found: Measured | InFlight
    position: Position
    rates: tuple[float, ...]
