"""A step of a group: the numbers of all ranks are folded into one before the verdict, so all come to the same one.

Promises: loss and digest of the batches are of all ranks, folded in the order of the ranks, with the same bits on each.
Ranks whose gradient norms, rates or places differ train different models: the step raises before its update.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, Any, Final, NoReturn

from tolariad.channel.group_page import Line
from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.ranks.group import RanksDiffer
from tolariad.trainer.step.measured import Measured
from tolariad.trainer.step.several import StepperOfUpdates

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.optim import Optimizer

    from tolariad.channel.points import Lines
    from tolariad.trainer.setup import Setup
    from tolariad.trainer.step.measured import InFlight

_CAUSES: Final = {
    "gradient norm": "Is the forward pass made by the model that DistributedDataParallel wraps, and is `no_sync` left "
    "before the last backward pass of a step?",
    "learning rates": "Did one rank get another configuration, or change a rate itself?",
    "place": "The loops of all ranks must take every batch, and call run.step once for each.",
}


class StepperOfRanks(StepperOfUpdates):
    """Makes the steps of one rank."""

    def __init__(self, exchange: Callable[[Line], Lines], setup: Setup, *given: Any, **more: Any) -> None:
        """`exchange` gives the numbers of this rank, and returns those of all."""
        super().__init__(setup, *given, **more)
        self._exchange = exchange

    def finish(self, found: Measured | InFlight, batches: int) -> None:
        """Fold the numbers of all ranks, then make or skip the update on all."""
        super().finish(self._folded(self._read_now(found), batches), batches)

    def _read_now(self, found: Measured | InFlight) -> Measured:
        return found if isinstance(found, Measured) else self._read(found)

    def _folded(self, own: Measured, batches: int) -> Measured:
        rates, at = self._setup.rates, self.position
        step, digest = at.step + 1, rates.digest(at.step + 1, rates.row)
        place = at.epoch << 32 | at.batch + batches
        lines = self._exchange(Line(own.loss, own.grad_norm, own.overflow, step, place, digest, self._data))
        first = lines[0]
        for rank, line in enumerate(lines):
            if not _same(line.norm, first.norm):
                _differ("gradient norm", step, rank, first.norm, line.norm)
            if line.rates != first.rates:
                _differ("learning rates", step, rank, first.rates, line.rates)
            if (line.step, line.place) != (first.step, first.place):
                _differ("place", step, rank, (first.step, first.place), (line.step, line.place))
        # From 0.0 on in the order of the ranks: every rank gets the same bits.
        loss = sum([line.loss for line in lines]) / len(lines)
        self._data = zlib.crc32(struct.pack(f"<{len(lines)}I", *(line.data for line in lines))) or 1
        return Measured(loss, own.grad_norm, any(line.overflow for line in lines))

    def finish_updates(self, found: Measured | InFlight, batches: int) -> None:  # noqa: ARG002 - nothing is made
        """Refuse a step of several updates."""
        self._refuse()

    def _before_update(self, optimizer: Optimizer) -> None:  # noqa: ARG002 - none is made
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise SetupRefused(
            "several ranks make one update a step, after all have their gradients: call run.step(loss), and not "
            "run.update() or a closure (docs/ranks.md)"
        )


def _same(one: float, other: float) -> bool:
    return one == other or (one != one and other != other)  # noqa: PLR0124 - both are NaN


def _differ(what: str, step: int, rank: int, first: object, other: object) -> NoReturn:
    raise RanksDiffer(
        f"step {step}: the {what} of rank 0 is {first!r}, and that of rank {rank} is {other!r}, so the ranks train "
        f"different models. No update was made. {_CAUSES[what]}"
    )
