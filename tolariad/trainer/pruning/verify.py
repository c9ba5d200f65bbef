"""Groups of a model that were shown by numbers: a masked copy and a compacted copy give the same outputs.

Promises: the model is not touched and no generator advances. A graph is only a guess: an operation that mixes channels,
such as a flip or a softmax, looks like one that does not. A group that fails, in whatever way, is refused by name, and
the others are tried.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from msgspec.structs import replace
from torch import Tensor, nn

from tolariad.trainer.pruning.copies import copied
from tolariad.trainer.pruning.graph import trace
from tolariad.trainer.pruning.heads import Heads, find_heads
from tolariad.trainer.pruning.removal import remove
from tolariad.trainer.pruning.trial import SEED, Trial, outputs_of, trial_of
from tolariad.trainer.pruning.units import (
    Coordinates,
    Found,
    Refusal,
    Removed,
    Role,
    UnitGroup,
    coordinates,
    removed,
)


def find_groups(model: nn.Module, inputs: tuple[Any, ...], *, protected: Collection[str] = ()) -> Found:
    """Return all groups of `model` that can be pruned, and the modules that are refused with the reasons.

    `inputs`: an example of the positional arguments, such as those of one batch. `protected`: names of modules or
    parameters that no group may touch, such as seeds that are not fossilised. Raises PruningRefused if the model cannot
    be copied or traced, ImportError without torch-pruning.
    """
    with torch.random.fork_rng(devices=[]), torch.enable_grad(), _uncompiled():
        torch.manual_seed(SEED)
        trial = trial_of(model, inputs)
        # Of a layer that is not used every guess would hold.
        guesses = [one for one in find_heads(model, protected) if one.group.slices[-1].path in trial.used]
        of_heads, not_heads = _proved_heads(trial, guesses)
        found = trace(trial, protected, of_heads)
        proved, refused = _proved(trial, found.groups)
    order = {name: at for at, (name, _) in enumerate(model.named_modules())}
    return Found(
        tuple(sorted([*proved, *of_heads], key=lambda group: order[group.name])),
        (*(one for one in found.refused if one.name not in {each.name for each in not_heads}), *refused, *not_heads),
    )


@contextmanager
def _uncompiled() -> Iterator[None]:
    """Let parts of the model that the user compiled run as they are written: a copy would be compiled anew."""
    # The compiler itself takes seconds to import, and nothing is compiled without it.
    if "torch._dynamo.convert_frame" not in sys.modules:
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


def same_outputs(one: nn.Module, other: nn.Module, inputs: tuple[Any, ...], tolerance: float) -> str:
    """Return "" if both give the same outputs, else a clause. Both must be in evaluation mode."""
    worst = difference(one, other, inputs)
    if isinstance(worst, str):
        return worst
    # Negated: a NaN is no agreement.
    return "" if worst <= tolerance else f"masked and removed they give different outputs (by {worst:.1e})"


@torch.no_grad()
def difference(one: nn.Module, other: nn.Module, inputs: tuple[Any, ...]) -> float | str:
    """Return the greatest difference of the outputs, relative to their size if that is above 1. NaN if one is.

    Return a clause if they cannot be compared. Both must be in evaluation mode.
    """
    first = outputs_of(one, inputs)
    try:
        second = outputs_of(other, inputs)
    except Exception as error:  # noqa: BLE001 - a shape that the model's code has written into it: any error may follow
        return f"without them the model fails: {type(error).__name__}: {error}"
    shapes = [tuple(tensor.shape) for tensor in first], [tuple(tensor.shape) for tensor in second]
    if shapes[0] != shapes[1]:
        return f"without them the outputs have other shapes: {shapes[1]} instead of {shapes[0]}"
    found = [_apart(a, b) for a, b in zip(first, second, strict=True) if a.numel()]
    return math.nan if any(math.isnan(each) for each in found) else max(found, default=0.0)


def _apart(one: Tensor, other: Tensor) -> float:
    if one.is_complex():
        one, other = torch.view_as_real(one), torch.view_as_real(other)
    a, b = one.double(), other.double()
    # Infinite outputs, such as those of classes that are left out, are equal or not.
    scale = max(1.0, float(a.abs().nan_to_num(0.0, 0.0).max()))
    return float(torch.where(a == b, 0.0, (a - b).abs()).max()) / scale


@torch.no_grad()
def zero(tensors: Mapping[str, Tensor], coordinates: Coordinates) -> None:
    """Set these coordinates of the tensors to 0."""
    for path, dims in coordinates.items():
        for dim, indices in dims.items():
            tensor = tensors[path]
            tensor.index_fill_(dim, torch.tensor(indices, device=tensor.device), 0.0)


def _proved(trial: Trial, groups: Sequence[UnitGroup]) -> tuple[list[UnitGroup], list[Refusal]]:
    """Split the groups into those that hold together and those that do not. One trial, if all of them hold."""
    if not _disagreement(trial, groups):
        return list(groups), []
    proved: list[UnitGroup] = []
    refused = []
    for group in groups:
        if why := _disagreement(trial, [*proved, group]):
            refused.append(Refusal(group.name, why))
        else:
            proved.append(group)
    return proved, refused


def _disagreement(trial: Trial, groups: Sequence[UnitGroup]) -> str:
    """Compare a copy in which units of each group are masked with one in which they are removed: first one, then some.

    One alone may have no part in the outputs of the trial, and several together may fit a shape that one does not.
    """
    return _differing(trial, {one.name: (_one(one),) for one in groups}, groups) or _differing(
        trial, {one.name: _some(one) for one in groups}, groups
    )


def _differing(trial: Trial, units: Mapping[str, tuple[int, ...]], groups: Sequence[UnitGroup]) -> str:
    try:
        gone = removed(groups, units)
        masked, small = copied(trial.model), copied(trial.model)
        zero(dict(masked.named_parameters()), gone.parameters)
        remove(small, gone)
        why = same_outputs(masked, small, trial.inputs, trial.tolerance)
        return why or _fails_in_training(trial, gone)
    except Exception as error:  # noqa: BLE001 - the model's code, with values and shapes that it has never had
        return f"masked the model fails: {type(error).__name__}: {error}"


def _fails_in_training(trial: Trial, gone: Removed) -> str:
    """Return a clause if training mode calls more of the model, and that does not fit the smaller one; "" otherwise."""
    small = copied(trial.model).train()
    remove(small, gone)
    error = _error_of(small, trial.inputs)
    # Few samples may be too few for a batch normalisation, whatever is removed.
    if not error or _error_of(copied(trial.model).train(), trial.inputs):
        return ""
    return f"without them the model fails in training: {error}"


@torch.no_grad()
def _error_of(model: nn.Module, inputs: tuple[Any, ...]) -> str:
    try:
        outputs_of(model, inputs)
    except Exception as error:  # noqa: BLE001 - as in `difference`
        return f"{type(error).__name__}: {error}"
    return ""


def _some(group: UnitGroup) -> tuple[int, ...]:
    """Up to three units from all over the group, which keeps one: where channels are mixed, some may show nothing.

    No two of them change places in a flip, which would go unseen.
    """
    wanted = dict.fromkeys((_one(group), 1, group.width - 3))
    return tuple(one for one in wanted if 0 <= one < group.width)[: group.width - 1]


def _one(group: UnitGroup) -> int:
    """Neither the first nor the last, if there are more: at an end an off-by-one may not show."""
    return group.width // 3


def _proved_heads(trial: Trial, found: Sequence[Heads]) -> tuple[list[UnitGroup], list[Refusal]]:
    """Show that rows and columns are those of the same head; then whether heads can be removed as well.

    Of several guesses with one name the first that holds is taken. One trial for all layers, if all first guesses hold.
    """
    held = {one.group.name: one.group for one in reversed(found)}
    refused: dict[str, Refusal] = {}
    if not _same_heads(trial, [one for one in found if one.group is held[one.group.name]]):
        held = {}
        for one in found:
            if one.group.name not in held and _same_heads(trial, [one]):
                held[one.group.name] = one.group
        why = "its rows are not ordered by queries, keys and values, then by heads"
        refused = {one.group.name: Refusal(one.group.name, why) for one in found if one.group.name not in held}
    groups = list(held.values())
    if _disagreement(trial, [one for one in groups if not one.fixed]):
        groups = [replace(one, fixed=one.fixed or _disagreement(trial, [one])) for one in groups]
    return groups, list(refused.values())


def _same_heads(trial: Trial, found: Sequence[Heads]) -> bool:
    """Return whether a head whose output is not read, one whose values are 0, and one that is gone are all the same."""
    without = []
    for slices in (
        [(one, group) for group, _ in found for one in group.slices if one.role is Role.READS],
        [(one, group) for group, values in found for one in values],
        [(one, group) for group, _ in found for one in group.slices],
    ):
        masked = copied(trial.model)
        gone = coordinates((one, (_one(group),)) for one, group in slices)
        zero(dict(masked.named_parameters()), gone)
        without.append(masked)
    try:
        return not any(same_outputs(without[0], other, trial.inputs, trial.tolerance) for other in without[1:])
    except Exception:  # noqa: BLE001 - the model's code, with values that it has never had: nothing is shown
        return False
