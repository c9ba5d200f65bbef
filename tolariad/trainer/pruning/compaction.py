"""Compaction: masked units are removed, so that the model becomes smaller and trains on as it would have.

Promises: the compacted model gives the masked model's outputs within 1e-5: a trial on copies shows it before anything
changes. Optimizer state and averages of what stays are the same numbers. If it is refused or fails, model, optimizers
and rates are as before.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import torch
from msgspec import Struct

from tolariad.trainer.architecture.follow import Following
from tolariad.trainer.architecture.undo import Undo
from tolariad.trainer.pruning.masks import HeldMasks, MaskSet
from tolariad.trainer.pruning.removal import remove
from tolariad.trainer.pruning.units import PruningRefused, UnitGroup, removed
from tolariad.trainer.pruning.verify import same_outputs

if TYPE_CHECKING:
    from torch import Tensor, nn

    from tolariad.trainer.lr import UnifiedLRController
    from tolariad.trainer.optim.average import Average
    from tolariad.trainer.optim.mapping import ParameterMapping
    from tolariad.trainer.optim.owners import Owner

_TOLERANCE: Final = 1e-5


class Compacted(Struct, frozen=True, kw_only=True):
    """Sizes before and after: numbers in parameters; bytes of parameters, buffers and optimizer state."""

    parameters_before: int
    parameters: int
    bytes_before: int
    bytes: int


def compact(
    model: nn.Module,
    groups: Sequence[UnitGroup],
    masks: MaskSet,
    owners: list[Owner],
    *,
    rates: UnifiedLRController,
    inputs: tuple[Any, ...],
    average: Average | None = None,
) -> Compacted:
    """Remove what `masks` holds at 0 from the model, its optimizers and its average.

    `groups` are the groups of the model as it is. `inputs`: the model's arguments for the trial. The masks are spent
    afterwards. Raises PruningRefused, and has changed nothing, if a unit cannot be removed.
    """
    _check(model, groups, masks, inputs)
    before = _sizes(model, owners)
    kept = {} if average is None else dict(average.tensors)
    undo, following = Undo(model, owners, rates), Following(model, owners, rates, average, hosts=len(owners))
    try:
        mappings = remove(model, groups, masks.units)
        following.after(mappings)
    except Exception as error:
        undo.put_back()
        raise PruningRefused(f"the compaction failed: {type(error).__name__}: {error}") from error
    if average is not None:
        _contract(average, kept, mappings)
    parameters, held = _sizes(model, owners)
    return Compacted(parameters_before=before[0], parameters=parameters, bytes_before=before[1], bytes=held)


def _check(model: nn.Module, groups: Sequence[UnitGroup], masks: MaskSet, inputs: tuple[Any, ...]) -> None:
    HeldMasks(model, masks)
    if removed(groups, masks.units).parameters != masks.coordinates:
        raise PruningRefused("the masks do not cover the units that they name: they are of another model")
    for group in groups:
        if group.fixed and group.name in masks.units:
            raise PruningRefused(f"the units of {group.name} can be masked but not removed: {group.fixed}")
    parameters = dict(model.named_parameters())
    for path, dims in masks.coordinates.items():
        for dim, indices in dims.items():
            masked = parameters[path].detach().index_select(dim, torch.tensor(indices, device=parameters[path].device))
            if masked.count_nonzero():
                raise PruningRefused(f"{path} is not 0 where it is masked: hold the masks first")
    masked_copy = copy.deepcopy(model).eval()
    small = copy.deepcopy(masked_copy)
    remove(small, groups, masks.units)
    why = same_outputs(masked_copy, small, inputs, _TOLERANCE)
    if why:
        raise PruningRefused(f"these units cannot be removed: {why}")


def _contract(average: Average, kept: dict[str, Tensor], mappings: Sequence[ParameterMapping]) -> None:
    """Give the averages of smaller parameters the numbers that they had."""
    values = dict(average.tensors)
    for mapping in mappings:
        for dim, indices in (mapping.keep or {}).items():
            tensor = kept[mapping.old_id]
            kept[mapping.old_id] = tensor.index_select(dim, torch.tensor(list(indices), device=tensor.device))
        values[mapping.new_id] = kept[mapping.old_id]
    average.load(values)


def _sizes(model: nn.Module, owners: Sequence[Owner]) -> tuple[int, int]:
    parameters = list(model.parameters())
    state = [
        one
        for owner in owners
        for entries in owner.optimizer.state.values()
        for one in entries.values()
        if isinstance(one, torch.Tensor)
    ]
    tensors = [*parameters, *model.buffers(), *state]
    return sum(one.numel() for one in parameters), sum(one.numel() * one.element_size() for one in tensors)
