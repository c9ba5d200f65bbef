"""A step of a group that the recorder's daemon has started: each rank computes its share of the batches of a step.

The step is wrapped in DistributedDataParallel, and not the model: a task may use any attribute of its model, names get
no prefix, and a validation has no collective.

Promises: a step of W ranks is that of one process that accumulates W times as many batches: the gradients are those of
the mean over all of them, a last and smaller group included.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from msgspec.structs import replace
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from tolariad.trainer.data.feed import to_device
from tolariad.trainer.data.share import ELSEWHERE
from tolariad.trainer.ranks.stepping import StepperOfRanks
from tolariad.trainer.step.gradients import numbers_of, refuse_without_loss, scalar
from tolariad.trainer.torch_private import ddp

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tolariad.trainer.setup import Setup
    from tolariad.trainer.step.measured import InFlight, Measured


class StepOfTask(nn.Module):
    """The loss of a task as a module, which DistributedDataParallel can wrap."""

    def __init__(self, task: Any, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        # In a tuple: a task may be a module itself, and has the same parameters then.
        self._task = (task,)

    def forward(self, batch: Any) -> Any:
        """Return what the task's `loss` returns."""
        return self._task[0].loss(self.model, batch)


def wrapped(setup: Setup) -> DistributedDataParallel:
    """Wrap the step for this group. All ranks call this together, and get rank 0's parameters and buffers."""
    step = DistributedDataParallel(StepOfTask(setup.task, setup.model))
    ddp.fix_buckets(step)
    return step


class StepperOfShares(StepperOfRanks):
    """Makes the steps of one rank, each from its share of the batches."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self._step = wrapped(self._setup)
        self._clock.watch(self._step)

    def make(self, batches: Sequence[Any]) -> None:
        """Make one update from the micro-batches of all ranks, of which this one reads its own."""
        own = [batch for batch in batches if batch is not ELSEWHERE]
        self.note(own)
        if not self.begin(len(batches)):
            return
        found = self._stopwatch.of_task(self._gradients, own, len(batches))
        self.finish(found, len(batches))

    def ready_to_validate(self) -> None:
        """Give all ranks the buffers of rank 0: they evaluate the same model, so they judge the same metrics."""
        for buffer in self._setup.model.buffers():
            distributed.broadcast(buffer, 0)

    def _gradients(self, own: Sequence[Any], batches: int) -> Measured | InFlight:
        """Compute the gradients of the mean over `batches` micro-batches. Return the share of this rank in the loss."""
        setup, ranks, step = self._setup, self._setup.place.ranks, self.position.step + 1
        # The engine divides the sum of all ranks by their number.
        parts = batches // ranks if batches % ranks == 0 else batches / ranks
        counts = self._setup.place.rank < batches
        losses = [
            self._backward(batch, parts, of=len(own), counts=counts, is_last=number == len(own))
            for number, batch in enumerate(own, 1)
        ]
        found = self._read_now(numbers_of(setup, losses, step))
        if not counts:
            return replace(found, loss=0.0)
        return found if len(own) == parts else replace(found, loss=found.loss * len(own) / parts)

    def _backward(self, batch: Any, parts: float, *, of: int, counts: bool, is_last: bool) -> torch.Tensor:
        """Add the share of one micro-batch to the gradients, and with the last one those of the other ranks."""
        setup = self._setup
        if setup.moves:
            batch = to_device(batch, setup.device)
        with nullcontext() if is_last else self._step.no_sync():
            with setup.forward():
                returned = self._step(batch)
            if isinstance(returned, dict):
                setup.metrics.log(returned, of, but="loss")
                returned = returned["loss"] if "loss" in returned else refuse_without_loss(returned)
            loss = scalar(returned)
            # A batch that another rank reads too does not count.
            counted = loss if counts else loss * 0.0
            return self.add_gradients(setup, counted, parts, "the loss that loss(model, batch) returns")
