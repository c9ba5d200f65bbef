"""Groups of a model that were shown by numbers: a masked copy and a compacted copy give the same outputs.

Promises: the model is not touched and no generator advances. The copies compute in float64 with random weights, so that
a weight that happens to be 0 hides nothing. A graph is only a guess: an operation that mixes channels, such as a flip
or a softmax, looks like one that does not.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import torch
from msgspec.structs import replace
from torch import Tensor, nn

from tolariad.trainer.pruning.graph import trace
from tolariad.trainer.pruning.heads import Heads, find_heads
from tolariad.trainer.pruning.removal import remove
from tolariad.trainer.pruning.units import (
    Coordinates,
    Found,
    PruningRefused,
    Refusal,
    Role,
    UnitGroup,
    coordinates,
    removed,
)
from tolariad.trainer.torch_private.tensors import leaves_in, with_leaves

_TOLERANCE: Final = 1e-9
_SEED: Final = 3


def find_groups(model: nn.Module, inputs: tuple[Any, ...], *, protected: Collection[str] = ()) -> Found:
    """Return all groups of `model` that can be pruned, and the modules that are refused with the reasons.

    `inputs`: an example of the positional arguments, such as those of one batch. `protected`: names of modules or
    parameters that no group may touch, such as seeds that are not fossilised. Raises PruningRefused if the model cannot
    be copied or traced, ImportError without torch-pruning.
    """
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(_SEED)
        trial, given = _trial(model), with_leaves(_widened, inputs)
        used = _used(trial, given)
        # Of a layer that is not used every guess would hold.
        guesses = [one for one in find_heads(model, protected) if one.group.slices[-1].path in used]
        of_heads, not_heads = _proved_heads(trial, given, guesses)
        found = trace(copy.deepcopy(trial), given, protected, of_heads, used)
        proved, refused = _proved(trial, given, found.groups)
    order = {name: at for at, (name, _) in enumerate(model.named_modules())}
    return Found(
        tuple(sorted([*proved, *of_heads], key=lambda group: order[group.name])),
        (*found.refused, *refused, *not_heads),
    )


def same_outputs(one: nn.Module, other: nn.Module, inputs: tuple[Any, ...], tolerance: float) -> str:
    """Return "" if both give the same outputs, else a clause. Both must be in evaluation mode."""
    worst = difference(one, other, inputs)
    if isinstance(worst, str):
        return worst
    # Negated: a NaN is no agreement.
    return "" if worst <= tolerance else f"masked and removed they give different outputs (by {worst:.1e})"


def difference(one: nn.Module, other: nn.Module, inputs: tuple[Any, ...]) -> float | str:
    """Return the greatest difference of the outputs, relative to their size if that is above 1. NaN if one is.

    Return a clause if they cannot be compared. Both must be in evaluation mode.
    """
    first = _outputs(one, inputs)
    try:
        second = _outputs(other, inputs)
    except Exception as error:  # noqa: BLE001 - a shape that the model's code has written into it: any error may follow
        return f"without them the model fails: {type(error).__name__}: {error}"
    shapes = [tuple(tensor.shape) for tensor in first], [tuple(tensor.shape) for tensor in second]
    if shapes[0] != shapes[1]:
        return f"without them the outputs have other shapes: {shapes[1]} instead of {shapes[0]}"
    pairs = [(a.double(), b.double()) for a, b in zip(first, second, strict=True) if a.numel()]
    found = [float((a - b).abs().max()) / max(1.0, float(a.abs().max())) for a, b in pairs]
    return math.nan if any(math.isnan(each) for each in found) else max(found, default=0.0)


@torch.no_grad()
def zero(tensors: Mapping[str, Tensor], coordinates: Coordinates) -> None:
    """Set these coordinates of the tensors to 0."""
    for path, dims in coordinates.items():
        for dim, indices in dims.items():
            tensor = tensors[path]
            tensor.index_fill_(dim, torch.tensor(indices, device=tensor.device), 0.0)


def _trial(model: nn.Module) -> nn.Module:
    """Return a copy in float64 on the CPU, in evaluation mode, with random weights and statistics."""
    try:
        trial = copy.deepcopy(model).to("cpu").double().eval()
    except Exception as error:
        raise PruningRefused(f"the model cannot be copied: {type(error).__name__}: {error}") from error
    for module in trial.modules():
        config: Any = getattr(module, "config", None)
        if getattr(config, "use_cache", False):
            # The keys and values of a language model, kept for the next token: Torch-Pruning fails at them.
            config.use_cache = False
    with torch.no_grad():
        for parameter in trial.parameters():
            parameter.requires_grad_(parameter.is_floating_point())
            if parameter.is_floating_point():
                parameter.copy_(0.3 * torch.randn(parameter.shape, dtype=parameter.dtype))
        for name, buffer in trial.named_buffers():
            if name.rpartition(".")[2] in {"running_mean", "running_var"}:
                buffer.copy_(torch.rand_like(buffer) + 0.5)
    return trial


def _used(trial: nn.Module, inputs: tuple[Any, ...]) -> set[str]:
    """Return the names of the parameters that the outputs depend on. Raises PruningRefused if the model fails."""
    trial = copy.deepcopy(trial)
    try:
        for one in _tensors(trial, inputs):
            if one.requires_grad:
                one.backward(torch.randn_like(one), retain_graph=True)
    except Exception as error:
        raise PruningRefused(f"the model cannot be traced: {type(error).__name__}: {error}") from error
    return {name for name, one in trial.named_parameters() if one.grad is not None and one.grad.any()}


def _widened(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    value = value.detach().cpu()
    return value.double() if value.is_floating_point() else value


@torch.no_grad()
def _outputs(model: nn.Module, inputs: tuple[Any, ...]) -> list[Tensor]:
    return [one.detach() for one in _tensors(model, inputs)]


def _tensors(model: nn.Module, inputs: tuple[Any, ...]) -> list[Tensor]:
    """Return the tensors of the outputs. Draws of random numbers are the same in every call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        # A copy of the inputs: a model may change them.
        outputs = model(*with_leaves(lambda one: one.clone() if isinstance(one, Tensor) else one, inputs))
    return [one for one in leaves_in(outputs) if isinstance(one, Tensor)]


def _proved(
    trial: nn.Module, inputs: tuple[Any, ...], groups: Sequence[UnitGroup]
) -> tuple[list[UnitGroup], list[Refusal]]:
    """Split the groups into those that hold and those that do not. One trial for all of them, if all hold."""
    if not _disagreement(trial, inputs, groups):
        return list(groups), []
    each = [(group, _disagreement(trial, inputs, [group])) for group in groups]
    return (
        [group for group, why in each if not why],
        [Refusal(group.name, why) for group, why in each if why],
    )


def _disagreement(trial: nn.Module, inputs: tuple[Any, ...], groups: Sequence[UnitGroup]) -> str:
    """Compare a copy in which a unit of each group is masked with one in which it is removed."""
    gone = removed(groups, {group.name: (_one(group),) for group in groups})
    masked, small = copy.deepcopy(trial), copy.deepcopy(trial)
    zero(dict(masked.named_parameters()), gone.parameters)
    remove(small, gone)
    return same_outputs(masked, small, inputs, _TOLERANCE)


def _one(group: UnitGroup) -> int:
    """Neither the first nor the last, if there are more: at an end an off-by-one may not show."""
    return group.width // 3


def _proved_heads(
    trial: nn.Module, inputs: tuple[Any, ...], found: Sequence[Heads]
) -> tuple[list[UnitGroup], list[Refusal]]:
    """Show that rows and columns are those of the same head; then whether heads can be removed as well.

    Of several guesses with one name the first that holds is taken. One trial for all layers, if all first guesses hold.
    """
    held = {one.group.name: one.group for one in reversed(found)}
    refused: dict[str, Refusal] = {}
    if not _same_heads(trial, inputs, [one for one in found if one.group is held[one.group.name]]):
        held = {}
        for one in found:
            if one.group.name not in held and _same_heads(trial, inputs, [one]):
                held[one.group.name] = one.group
        why = "its rows are not ordered by queries, keys and values, then by heads"
        refused = {one.group.name: Refusal(one.group.name, why) for one in found if one.group.name not in held}
    groups = list(held.values())
    if _disagreement(trial, inputs, [one for one in groups if not one.fixed]):
        groups = [replace(one, fixed=one.fixed or _disagreement(trial, inputs, [one])) for one in groups]
    return groups, list(refused.values())


def _same_heads(trial: nn.Module, inputs: tuple[Any, ...], found: Sequence[Heads]) -> bool:
    """Return whether a head whose output is not read, one whose values are 0, and one that is gone are all the same."""
    without = []
    for slices in (
        [(one, group) for group, _ in found for one in group.slices if one.role is Role.READS],
        [(one, group) for group, values in found for one in values],
        [(one, group) for group, _ in found for one in group.slices],
    ):
        masked = copy.deepcopy(trial)
        gone = coordinates((one, (_one(group),)) for one, group in slices)
        zero(dict(masked.named_parameters()), gone)
        without.append(masked)
    return not any(same_outputs(without[0], other, inputs, _TOLERANCE) for other in without[1:])
