"""A step of a group: the numbers of all ranks are folded into one before the verdict, so all come to the same one.

Promises: loss and digest of the batches are of all ranks, folded in the order of the ranks, with the same bits on each.
Ranks whose gradient norms, rates or places differ train different models: the step raises before its update.
"""

from __future__ import annotations

import struct
import zlib
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn

from tolariad.channel.group_page import Line
from tolariad.core import messages as m
from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.ranks.exact.order import block
from tolariad.trainer.ranks.group import RanksDiffer
from tolariad.trainer.ranks.times import samples_of
from tolariad.trainer.step.measured import Measured
from tolariad.trainer.step.several import StepperOfUpdates

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch
    from torch.optim import Optimizer

    from tolariad.trainer.checkpoints.snapshot import Position
    from tolariad.trainer.ranks.group import Follower, Leader
    from tolariad.trainer.setup import Setup
    from tolariad.trainer.step.measured import InFlight

_CAUSES: Final = {
    "gradient norm": "Is the forward pass made by the model that DistributedDataParallel wraps, and is `no_sync` left "
    "before the last backward pass of a step?",
    "learning rates": "Did one rank get another configuration, or change a rate itself?",
    "batches": "With exact sums every rank goes through the whole data in one order, and makes its own batches of each "
    "step: pass the loader that one process would have.",
    "place": "The loops of all ranks must take every batch, and call run.step once for each.",
}


class StepperOfRanks(StepperOfUpdates):
    """Makes the steps of one rank."""

    def __init__(self, group: Leader | Follower, setup: Setup, *given: Any, **more: Any) -> None:
        """`group` gives the numbers of this rank, and returns those of all."""
        super().__init__(setup, *given, **more)
        self._exchange, self._clock = group.exchange, group.clock
        self._samples = 0
        # With exact sums: what tells whether all ranks have the same batches in the same order; 0: nothing does.
        self._order = 0

    def note(self, batches: Sequence[Any]) -> None:
        """Take the digest of the micro-batches of the next step, and the number of samples if it is timed."""
        super().note(batches)
        data = self._setup.train
        if self._setup.settings.parallel.exact:
            shares = data.share_of.drawn_together
            self._order = data.order_digest(self.position.batch + len(batches)) if shares else self._data
        if self._clock.is_on:
            place, count = self._setup.place, len(batches)
            mine = block(count, place.ranks, place.rank) if self._setup.settings.parallel.exact else range(count)
            self._samples = sum(samples_of(batches[number]) for number in mine)

    def add_gradients(self, setup: Setup, loss: torch.Tensor, parts: float, what: str) -> torch.Tensor:
        """Run the backward pass of one micro-batch, timed if the step is."""
        run = partial(super().add_gradients, setup, loss, parts, what)
        if not self._clock.is_on or not loss.requires_grad:
            return run()
        found: torch.Tensor = self._clock.of_backward(loss, run)
        return found

    def of_sum(self, add_up: Callable[[], None]) -> None:
        """Let the gradients of all ranks be added up. That takes as long as the slowest rank: it counts as wait."""
        self._clock.of_wait(add_up)

    def stand_at(self, position: Position) -> None:
        """Set the position that the current state belongs to. At an epoch's end rank 0 reports times."""
        super().stand_at(position)
        self._tell_times(position.epoch - 1)

    def finish(self, found: Measured | InFlight, batches: int) -> None:
        """Fold the numbers of all ranks, then make or skip the update on all."""
        super().finish(self._folded(self._read_now(found), batches), batches)
        if self._clock.is_on and self._clock.is_due:
            self._tell_times(self.position.epoch)

    def _tell_times(self, epoch: int) -> None:
        if self._setup.place.rank == 0 and (found := self._clock.taken()):
            self._reporter.report(m.Told(event=m.BudgetsMeasured(epoch=epoch, tallies=(), ranks=found)))

    def _read_now(self, found: Measured | InFlight) -> Measured:
        return found if isinstance(found, Measured) else self._read(found)

    def _folded(self, own: Measured, batches: int) -> Measured:
        rates, at = self._setup.rates, self.position
        step, digest = at.step + 1, rates.digest(at.step + 1, rates.row)
        place = at.epoch << 32 | at.batch + batches
        is_timed = self._clock.is_on and not self._progress.rerunning
        since = self._clock.computed() if is_timed else 0
        is_exact = self._setup.settings.parallel.exact
        data = self._order if is_exact else self._data
        lines = self._exchange(Line(own.loss, own.grad_norm, own.overflow, step, place, digest, data))
        if is_timed:
            self._clock.met(since, step, self._samples)
        else:
            self._clock.over(step)
        first, known = lines[0], next((line.data for line in lines if line.data), 0)
        for rank, line in enumerate(lines):
            if not _same(line.norm, first.norm):
                _differ("gradient norm", step, rank, first.norm, line.norm)
            if line.rates != first.rates:
                _differ("learning rates", step, rank, first.rates, line.rates)
            if (line.step, line.place) != (first.step, first.place):
                _differ("place", step, rank, (first.step, first.place), (line.step, line.place))
            if is_exact and not (line.data in (0, known) and _same(line.loss, first.loss)):
                _differ("batches", step, rank, (first.data, first.loss), (line.data, line.loss))
        if is_exact:
            # Batches and loss are those of all ranks already.
            return own
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
