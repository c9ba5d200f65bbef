"""The steps of a task whose gradients are exact sums (docs/exact-sums.md): a rank makes its leaves of each step.

The model is not wrapped, and no collective of torch's is made: gradients, losses and digests of all leaves meet in the
mapping of the exact sum. So a rank needs no process group.

Promises: losses and gradients of a step, what it draws, and the digest of its batches do not depend on the number of
ranks. The gradients are those of one process that accumulates all leaves.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from tolariad.trainer.data.digest import digest_of
from tolariad.trainer.data.feed import to_device
from tolariad.trainer.data.generators import is_generator
from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.ranks.exact import ExactSum, RankLost
from tolariad.trainer.ranks.stepping import StepperOfRanks
from tolariad.trainer.step.gradients import numbers_of, refuse_without_loss, scalar
from tolariad.trainer.step.metrics import on_host
from tolariad.trainer.step.several import StepperOfUpdates

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tolariad.trainer.data.generators import Generator
    from tolariad.trainer.setup import Setup
    from tolariad.trainer.step.measured import InFlight, Measured

# Loss and digest of a leaf.
NUMBERS: Final = 2
# Whoever started the ranks sees within seconds that one is lost, and ends all.
_ENDED_S: Final = 15.0
_LOOK_S: Final = 0.005


def sums_of(setup: Setup, mapping: int | None, waiting: Callable[[], None], model: nn.Module | None = None) -> ExactSum:
    """Set up the exact sums of a run, and meet the other ranks. Raises SetupRefused, or what `waiting` raises.

    `mapping`: the descriptor of the group's memory file; None for one rank. `waiting`: called during each wait.
    `model`: DDP around the run's model, if it came so.
    """
    if setup.garden.plots:
        raise SetupRefused(
            "the model has slots for seeds, and exact sums have no place for their gradients: build it without slots "
            "(docs/exact-sums.md)"
        )
    return ExactSum(
        setup.model if model is None else model,
        rank=setup.place.rank,
        ranks=setup.place.ranks,
        leaves=setup.settings.accumulate,
        mapping=mapping,
        rng_seed=setup.rng_seed,
        generators=tuple(_held_by(setup.model)),
        numbers=NUMBERS,
        limit_s=setup.settings.trainer.silent_s,
        waiting=waiting,
    )


def take_told(setup: Setup, sums: ExactSum) -> None:
    """Take the metrics of all leaves of a step, in their order, as one process takes those of its micro-batches."""
    told = sums.told
    for one in told:
        if one:
            setup.metrics.log(one, len(told))


def _held_by(model: nn.Module) -> Iterator[Generator]:
    """Yield the generators that the model's modules hold, each once: a leaf draws from them too."""
    found = {id(one): one for module in model.modules() for one in vars(module).values() if is_generator(one)}
    yield from found.values()


class StepperOfLeaves(StepperOfUpdates):
    """Makes the steps of one process."""

    def __init__(
        self, *given: Any, mapping: int | None = None, waiting: Callable[[], None] = lambda: None, **more: Any
    ) -> None:
        """`mapping`, `waiting`: as `sums_of`."""
        super().__init__(*given, **more)
        self._waiting = waiting
        try:
            self._sums = sums_of(self._setup, mapping, waiting)
        except RankLost:
            self._await_end()
            raise

    def make(self, batches: Sequence[Any]) -> None:
        """Make one update from the leaves of all ranks, of which this one computes its own."""
        self.note(batches)
        if not self.begin(len(batches)):
            return
        try:
            found = self._stopwatch.of_task(self._gradients, batches)
        except RankLost:
            self._await_end()
            raise
        self.finish(found, len(batches))

    def close(self) -> None:
        """Leave the model's layers as they were."""
        self._sums.close()

    def _await_end(self) -> None:
        """A rank is lost: wait for what follows from that, so that this rank's error is not taken for the task's."""
        give_up = time.monotonic() + _ENDED_S
        while time.monotonic() < give_up:
            self._waiting()
            time.sleep(_LOOK_S)

    def _gradients(self, batches: Sequence[Any]) -> Measured | InFlight:
        """Compute the leaves of this rank, and add up those of all. Return the numbers of the step."""
        setup, sums, step = self._setup, self._sums, self.position.step + 1
        with ExitStack() as whole:
            block = whole.enter_context(sums.step(step, len(batches)))
            for leaf in block:
                digest = digest_of((batches[leaf],))
                with sums.leaf(leaf):
                    loss = self._backward(leaf, batches[leaf], len(batches))
                    sums.note(leaf, loss.item(), digest)
            self.of_sum(whole.close)
        take_told(setup, sums)
        self.of_leaves([int(digest) for _, digest in sums.numbers])
        losses = [torch.tensor(loss, dtype=torch.float64, device=setup.device) for loss, _ in sums.numbers]
        return numbers_of(setup, losses, step)

    def _backward(self, leaf: int, batch: Any, leaves: int) -> torch.Tensor:
        """Compute the gradients of one leaf of a step of so many, and tell its metrics."""
        setup = self._setup
        if setup.moves:
            batch = to_device(batch, setup.device)
        with setup.forward():
            returned = setup.task.loss(setup.model, batch)
        if isinstance(returned, dict):
            self._sums.tell(leaf, on_host(returned, but="loss"))
            returned = returned["loss"] if "loss" in returned else refuse_without_loss(returned)
        return self.add_gradients(setup, scalar(returned), leaves, "the loss that loss(model, batch) returns")


class StepperOfSharedLeaves(StepperOfLeaves, StepperOfRanks):
    """Makes the steps of one rank of several."""
