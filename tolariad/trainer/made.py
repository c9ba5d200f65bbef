"""A step that was made and is not reported yet.

It must not know: when its numbers arrive, or what is done with the report.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tolariad.core.learning_rate import rates_digest
from tolariad.core.vocabulary.steps import StepReport

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tolariad.trainer.checkpoints.snapshot import Position
    from tolariad.trainer.step import InFlight, Measured


class Made(NamedTuple):
    """What it found, where it ended, the rates it used. `is_late`: its numbers were not known before its update."""

    found: Measured | InFlight
    position: Position
    rates: Sequence[float]
    is_late: bool

    def report(self, measured: Measured) -> StepReport:
        """The report, from the numbers that have arrived."""
        return StepReport(
            step=self.position.step,
            epoch=self.position.epoch,
            batch=self.position.batch,
            loss=measured.loss,
            grad_norm=measured.grad_norm,
            lr=self.rates[0],
            rates=rates_digest(self.rates),
        )
