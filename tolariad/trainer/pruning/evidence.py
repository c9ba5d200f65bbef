"""The inputs of an analysis: batches of a run, its loss, and the arguments that its model is called with.

Promises: the loss of a batch is a pure function of the weights. Each batch has a seed of its own, so an augmentation
draws the same numbers whenever the batch is used. Computing it changes the process-wide generators, so only a process
of its own may call it.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from tolariad.core.calc.seeds.stages import Stage
from tolariad.trainer.data.feed import to_device
from tolariad.trainer.data.randomness import derived_seed, seed_everything, seed_host
from tolariad.trainer.data.samples import samples_of
from tolariad.trainer.pruning.importance import Loss, on_a_copy
from tolariad.trainer.pruning.removal import remove
from tolariad.trainer.pruning.units import Found, PruningRefused, Refusal, UnitGroup, removed
from tolariad.trainer.pruning.verify import find_groups
from tolariad.trainer.step.gradients import scalar
from tolariad.trainer.torch_private.tensors import leaves_in, with_leaves

if TYPE_CHECKING:
    from tolariad.trainer.setup import Setup

# The second order of an importance is a variance over batches.
BATCHES_MIN: Final = 16
# So few samples show the shapes; tracing copies and computes them in float64.
_TRACED_SAMPLES: Final = 4
_BY_POSITION: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class SeededBatch(NamedTuple):
    """A batch, and the seed under which its loss is computed."""

    seed: int
    batch: Any


class Evidence(NamedTuple):
    """Training data. `first`: the first batch, as the loop gets it. `batches`: 16 or more parts, if they can be cut."""

    first: SeededBatch
    batches: list[SeededBatch]


def training_data(setup: Setup, epoch: int, samples: int) -> Evidence:
    """Return batches of `epoch` with at least so many samples, or all that there are."""
    found: list[Any] = []
    held = 0
    for batch in setup.train.epoch(epoch, 0):
        found.append(batch)
        held += samples_of(batch)
        if held >= samples:
            break
    if not found:
        raise PruningRefused("the task's training data yields no batch")
    parts = math.ceil(BATCHES_MIN / len(found))
    cut = [part for batch in found for part in pieces(batch, parts)]
    seeded = [
        SeededBatch(derived_seed(setup.rng_seed, "pruning", at), to_device(part, setup.device))
        for at, part in enumerate([found[0], *cut])
    ]
    return Evidence(seeded[0], seeded[1:])


def pieces(batch: Any, parts: int) -> list[Any]:
    """Cut a batch into so many parts along its first dimension; itself, if its tensors differ there."""
    tensors = [one for one in leaves_in(batch) if isinstance(one, Tensor)]
    lengths = {len(one) if one.dim() else 0 for one in tensors}
    if parts < 2 or len(lengths) != 1 or (length := lengths.pop()) < 2:
        return [batch]
    size = math.ceil(length / parts)
    return [_rows(batch, first, min(size, length - first)) for first in range(0, length, size)]


def _rows(value: Any, first: int, size: int) -> Any:
    return with_leaves(lambda one: one.narrow(0, first, size) if isinstance(one, Tensor) else one, value)


def loss_of(setup: Setup) -> Loss:
    """Return the task's loss of a SeededBatch. Raises PruningRefused if the task has no loss of its own."""
    if setup.training_step is not None:
        raise PruningRefused("the task's training_step makes its own updates, so no loss says what a unit is worth")

    def loss(model: nn.Module, given: SeededBatch) -> Tensor:
        # An analysis computes on the CPU.
        seed_host(given.seed)
        with setup.forward():
            returned = setup.task.loss(model, given.batch)
        return scalar(returned["loss"] if isinstance(returned, dict) else returned)

    return loss


def held_out_slices(setup: Setup, samples: int, slices: int) -> list[tuple[Any, ...]]:
    """Return validation batches with at least so many samples, or all, in so many slices; empty without such data."""
    if setup.validation is None:
        return []
    found: list[Any] = []
    held = 0
    seed_everything(derived_seed(setup.rng_seed, "validation"))
    for batch in setup.validation.epoch(0, 0):
        found.append(batch)
        held += samples_of(batch)
        if held >= samples:
            break
    if len(found) < slices:
        found = [part for batch in found for part in pieces(batch, math.ceil(slices / len(found)))]
    return [tuple(one) for one in _dealt(found, slices)]


def _dealt(items: list[Any], hands: int) -> Iterator[list[Any]]:
    return (hand for first in range(hands) if (hand := list(islice(items, first, None, hands))))


def few_samples(given: SeededBatch) -> SeededBatch:
    """Return the first few samples of a batch, if it can be cut."""
    parts = math.ceil(samples_of(given.batch) / _TRACED_SAMPLES)
    return given._replace(batch=pieces(given.batch, parts)[0])


def example_inputs(setup: Setup, given: SeededBatch) -> tuple[Any, ...]:
    """Return the positional arguments of the model's call for this batch.

    Raises PruningRefused if the loss does not call the model, or calls it with arguments that have no position.
    """
    loss, caught = loss_of(setup), []

    def catch(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        caught.append((args, kwargs))

    with on_a_copy(setup.model) as trial, torch.no_grad():
        trial.register_forward_pre_hook(catch, with_kwargs=True)
        loss(trial, given)
    if not caught:
        raise PruningRefused("the task's loss does not call the model itself, so its graph cannot be traced")
    args, kwargs = caught[0]
    if not kwargs:
        return tuple(args)
    call = inspect.signature(setup.model.forward).bind(*args, **kwargs)
    positions = [name for name, one in call.signature.parameters.items() if one.kind in _BY_POSITION]
    if others := call.arguments.keys() - set(positions):
        raise PruningRefused(f"the model is called with {min(others)!r} by name only, so its graph cannot be traced")
    last = max(positions.index(name) for name in call.arguments)
    # An argument that is left out before one that is given has its default.
    call.apply_defaults()
    return tuple(call.arguments[name] for name in positions[: last + 1])


def protected(setup: Setup) -> tuple[str, ...]:
    """Return the names of modules that must not be pruned: seeds that are not a permanent part of the model yet."""
    return tuple(one.prefix.rstrip(".") for one in setup.garden.growing if one.stage is not Stage.FOSSILIZED)


def groups_of(setup: Setup, first: SeededBatch) -> Found:
    """Return the groups of the run's model. `first`: a batch of its training data.

    Raises PruningRefused, ImportError without torch-pruning.
    """
    few = few_samples(first)
    # More samples show more, if the model chooses its way by them.
    traced = few if reached(setup, few) >= reached(setup, first) else first
    found = find_groups(setup.model, example_inputs(setup, traced), protected=protected(setup))
    return _fitting_the_loss(setup, traced, found)


def reached(setup: Setup, given: SeededBatch) -> set[str]:
    """Return the names of the parameters that the loss of this batch is computed with."""
    loss = loss_of(setup)
    with on_a_copy(setup.model) as trial, torch.enable_grad():
        for parameter in trial.parameters():
            parameter.requires_grad_(parameter.is_floating_point())
        loss(trial, given).backward()
        return {name for name, one in trial.named_parameters() if one.grad is not None}


def _fitting_the_loss(setup: Setup, given: SeededBatch, found: Found) -> Found:
    """Refuse the groups without a unit of which the task's loss fails: it may read the model's layers by itself.

    In training mode too, in which more of the model may be called.
    """
    removable = [group for group in found.groups if not group.fixed]
    modes = [training for training in (False, True) if not _error_of_loss(setup, given, [], training=training)]

    def fault(groups: Sequence[UnitGroup]) -> str:
        errors = (_error_of_loss(setup, given, groups, training=training) for training in modes)
        return next((f"without them the task's loss fails: {error}" for error in errors if error), "")

    refused = {one.name: why for one in removable if (why := fault([one]))} if fault(removable) else {}
    return Found(
        tuple(group for group in found.groups if group.name not in refused),
        (*found.refused, *(Refusal(name, why) for name, why in refused.items())),
    )


def _error_of_loss(setup: Setup, given: SeededBatch, groups: Sequence[UnitGroup], *, training: bool) -> str:
    """Return the error of the task's loss if a unit of each of these groups is removed; "" if there is none."""
    loss = loss_of(setup)
    with on_a_copy(setup.model) as trial, torch.no_grad():
        remove(trial, removed(groups, {group.name: (group.width // 3,) for group in groups}))
        try:
            loss(trial.train(training), given)
        except Exception as error:  # noqa: BLE001 - the task's code, with shapes that it has never had
            return f"{type(error).__name__}: {error}"
    return ""
