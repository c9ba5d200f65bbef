"""Compare the present state with a pinned checkpoint: what both lose on the same batches, without training.

Promises: afterwards every tensor of the model has the bits that it had before, and so have its plain values, the moving
average and the process-wide generators. Nothing is updated and no gradient is left. What cannot be measured is None: a
loop of the user's own computes its losses itself, and a run may have no validation.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from tolariad.core import messages as m
from tolariad.core.calc.detection.comparison import Losses
from tolariad.core.calc.noise import error_of
from tolariad.trainer.checkpoints import lanes
from tolariad.trainer.checkpoints.restore import check_fits
from tolariad.trainer.data.feed import to_device
from tolariad.trainer.data.randomness import derived_seed, preserved_rng, seed_everything
from tolariad.trainer.parts.model import live_tensors
from tolariad.trainer.step.gradients import drop_gradients, scalar
from tolariad.trainer.step.validate import unchanged, validate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tolariad.trainer.checkpoints.loaded import Loaded
    from tolariad.trainer.setup import Setup

    Groups = Sequence[tuple[Any, ...]]


def measured(
    setup: Setup, loaded: Loaded, groups: Groups, beat: Callable[[], None], *, computes_loss: bool
) -> m.Measured:
    """Measure both states on these micro-batches, by update, and on the validation. Raises CheckpointUnfit.

    `computes_loss`: the task has a loss; otherwise only the validation is measured.
    """
    check_fits(setup, loaded)
    groups = groups if computes_loss else ()
    begin, usual = setup.watch.levels_of(loaded.state.get("detector"))
    with unchanged(setup), preserved_rng(), _task_unchanged(setup):
        now = _held(setup, beat), _newest(setup, groups, beat)
        with _weights_of(setup, loaded):
            pinned = _held(setup, beat), _newest(setup, groups, beat)
    held = None if now[0] is None or pinned[0] is None else Losses(now[0], pinned[0])
    return m.Measured(newest=_both(now[1], pinned[1]), held=held, begin=begin, usual=usual)


def _both(now: list[float], pinned: list[float]) -> Losses | None:
    """Return the means of the same batches, and the error of their difference; None without batches."""
    if not now:
        return None
    differences = [one - other for one, other in zip(now, pinned, strict=True)]
    return Losses(math.fsum(now) / len(now), math.fsum(pinned) / len(pinned), error_of(differences))


def _held(setup: Setup, beat: Callable[[], None]) -> float | None:
    """Return the mean loss of the validation; None if there is none."""
    return validate(setup, beat).means.get("loss")


def _newest(setup: Setup, groups: Groups, beat: Callable[[], None]) -> list[float]:
    """Return the loss of each update's batches, in training mode."""
    losses = []
    # Both states draw the same numbers, such as those of dropout.
    seed_everything(derived_seed(setup.rng_seed, "comparison"))
    for group in groups:
        beat()
        parts = []
        for batch in group:
            moved = to_device(batch, setup.device) if setup.moves else batch
            # Not `no_grad`: a loss may need gradients of its own, such as those with respect to its inputs.
            with setup.forward():
                returned = setup.task.loss(setup.model, moved)
            loss = scalar(returned["loss"] if isinstance(returned, dict) else returned)
            parts.append(float(loss.detach()))
        losses.append(math.fsum(parts) / len(parts))
    drop_gradients(setup.owners)
    return losses


@contextmanager
def _weights_of(setup: Setup, loaded: Loaded) -> Iterator[None]:
    """In the block the model has the weights and buffers of the pinned state."""
    live = live_tensors(setup.model)
    average = setup.average.tensors if setup.average is not None and loaded.average is not None else {}
    held = {id(tensor): tensor.detach().clone() for tensor in (*live.values(), *average.values())}
    with torch.no_grad():
        lanes.copy([(tensor, loaded.model[name]) for name, tensor in live.items() if name in loaded.model])
        lanes.copy([(tensor, (loaded.average or {})[name]) for name, tensor in average.items()])
    try:
        yield
    finally:
        with torch.no_grad():
            lanes.copy([(tensor, held[id(tensor)]) for tensor in (*live.values(), *average.values())])


@contextmanager
def _task_unchanged(setup: Setup) -> Iterator[None]:
    """Put back the task's own state, if it has one: a loss may count or remember."""
    task = setup.task
    saves, loads = getattr(task, "state_dict", None), getattr(task, "load_state_dict", None)
    if not callable(saves) or not callable(loads):
        yield
        return
    state = saves()
    try:
        yield
    finally:
        loads(state)
