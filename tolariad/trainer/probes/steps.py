"""Steps of a trial: real batches, forward and backward pass and update, without a run that records them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice
from typing import TYPE_CHECKING, Any

from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.step.gradients import drop_gradients, forward_backward, update
from tolariad.trainer.step.several import compute_updates
from tolariad.trainer.step.updates import Updates

if TYPE_CHECKING:
    from tolariad.trainer.setup import Setup
    from tolariad.trainer.step.measured import Measured


def one_epoch(setup: Setup, epoch: int) -> Iterator[tuple[Any, ...]]:
    """Yield the batches of an epoch, as many together as one update takes."""
    batches = setup.train.epoch(epoch, 0)
    while group := tuple(islice(batches, setup.settings.accumulate)):
        yield group


def endless(setup: Setup) -> Iterator[tuple[Any, ...]]:
    """Yield the same of one epoch after the other. Raises SetupRefused if an epoch has no batch."""
    for epoch in count(1):
        group: tuple[Any, ...] = ()
        for group in one_epoch(setup, epoch):
            yield group
        if not group:
            raise SetupRefused("the task's training data yields no batch")


def one_step(setup: Setup, group: tuple[Any, ...], step: int) -> Measured:
    """Make the updates of a step, and return its numbers. After an overflow of fp16 there is no update."""
    if setup.training_step is not None:
        updates = Updates(setup)
        updates.begin(step)
        measured = compute_updates(setup, group[0], updates).read()
    else:
        measured = forward_backward(setup, group, step).read()
        update(setup, skip=measured.overflow)
    drop_gradients(setup.owners)
    return measured
