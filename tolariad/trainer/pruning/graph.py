"""The groups of channels that depend on each other, from Torch-Pruning's dependency graph.

Promises: the model is not touched; a copy is traced. A group is returned only if it passes three checks. Every tensor
in it is known. Every index lies within its tensor. A tied parameter is cut alike for all modules that share it.
Torch-Pruning itself checks none of this. `verify` then shows by numbers that a group is independent of the rest.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import nn
from torch.nn.modules.conv import _ConvNd

from tolariad.core.pruning.budget import UnitKind
from tolariad.trainer.pruning.modules import Places, places
from tolariad.trainer.pruning.units import Found, PruningRefused, Refusal, TensorSlice, UnitGroup

if TYPE_CHECKING:
    from torch import Tensor

_OF_TORCH_PRUNING = "torch_pruning.ops"


class _Side(NamedTuple):
    """A module's outputs or inputs, or a parameter of its own with the dimension that holds channels."""

    target: Any
    outputs: bool
    dim: int = 0


# For each side that a group has: the unit of each of its indices.
_Sides = dict[_Side, dict[int, int]]


class _Names:
    """The names of modules, parameters and buffers. Tied parameters have their first name, and all their users."""

    def __init__(self, model: nn.Module) -> None:
        self.modules = {module: name for name, module in model.named_modules()}
        self.parameters = {id(one): name for name, one in model.named_parameters()}
        self.users: dict[str, set[str]] = defaultdict(set)
        for name, parameter in model.named_parameters(remove_duplicate=False):
            self.users[self.parameters[id(parameter)]].add(name)


def trace(copy: nn.Module, inputs: tuple[Any, ...], protected: Collection[str] = ()) -> Found:
    """Return the groups of `copy`, which is traced with `inputs` and may be changed by it, and what is refused.

    All parameters of `copy` must need a gradient. `protected`: names of modules or parameters that no group may touch.
    Raises PruningRefused if the model cannot be traced, ImportError without torch-pruning (extra `pruning`).
    """
    import torch_pruning as tp

    try:
        graph = tp.DependencyGraph().build_dependency(
            copy, inputs, forward_fn=lambda model, given: model(*given), output_transform=_marked, verbose=False
        )
    except Exception as error:
        raise PruningRefused(f"the model cannot be traced: {type(error).__name__}: {error}") from error
    names = _Names(copy)
    groups, refused, covered = [], [], set()
    for module, name in names.modules.items():
        if module in covered or module not in graph.module2node or not isinstance(module, (nn.Linear, _ConvNd)):
            continue
        sides, width, is_output = _sides(graph, module)
        covered |= {side.target for side in sides if side.outputs}
        made: UnitGroup | str = "its channels are outputs of the model" if is_output else ""
        made = made or _group(name, sides, width, names)
        made = made if isinstance(made, str) else _checked(made, copy, protected) or made
        if isinstance(made, str):
            refused.append(Refusal(name, made))
        else:
            groups.append(made)
    return Found(tuple(groups), tuple(refused))


def _marked(outputs: Any) -> list[Tensor]:
    """Return the outputs, each as the result of an operation: Torch-Pruning does not see a module's own result."""
    from torch.utils import _pytree as pytree

    return [one * 1.0 for one in pytree.tree_leaves(outputs) if getattr(one, "grad_fn", None) is not None]


def _sides(graph: Any, root: nn.Module) -> tuple[_Sides, int, bool]:
    """Return what depends on each of the root's output channels, their number, and whether they are outputs."""
    prune = graph.get_pruner_of_module(root).prune_out_channels
    width = graph.get_out_channels(root)
    items = list(graph.get_pruning_group(root, prune, list(range(width))))
    is_output = any(type(item.dep.target.module).__name__ == "_OutputOp" for item in items)
    # In the whole group each index keeps its first origin only. So a channel that depends on another one of the root
    # itself is lost there, as in the halves of a gate.
    if all(_is_regular(item.root_idxs, width) for item in items):
        sides = {_side(graph, item): dict(zip(item.idxs, item.root_idxs, strict=True)) for item in items}
    else:
        sides, width = _closed(graph, root, prune, width)
    return {side: units for side, units in sides.items() if side.target is not None}, width, is_output


def _is_regular(origins: list[int], width: int) -> bool:
    counts = [0] * width
    for origin in origins:
        counts[origin] += 1
    return len(set(counts)) == 1


def _side(graph: Any, item: Any) -> _Side:
    target, node = item.dep.target.module, item.dep.target
    if type(target).__module__ == _OF_TORCH_PRUNING:
        return _Side(None, outputs=False)
    if isinstance(target, nn.Module):
        return _Side(target, outputs=graph.is_out_channel_pruning_fn(item.dep.handler))
    return _Side(target, outputs=False, dim=node.pruning_dim)


def _closed(graph: Any, root: nn.Module, prune: Any, width: int) -> tuple[_Sides, int]:
    """Return the sides, with channels that depend on each other as one unit, by asking for one channel at a time."""
    reached = [
        {_side(graph, item): set(item.idxs) for item in graph.get_pruning_group(root, prune, [channel])}
        for channel in range(width)
    ]
    own = _Side(root, outputs=True)
    unit_of = _joined(width, (one[own] | {channel} for channel, one in enumerate(reached)))
    sides: _Sides = defaultdict(dict)
    for channel, one in enumerate(reached):
        for side, indices in one.items():
            sides[side].update(dict.fromkeys(indices, unit_of[channel]))
    return sides, max(unit_of) + 1


def _joined(count: int, sets: Iterator[set[int]]) -> list[int]:
    """Return the number of each element's class, if the elements of each set are in one. Classes count from 0."""
    leader = list(range(count))

    def find(one: int) -> int:
        while leader[one] != one:
            one = leader[one]
        return one

    for members in sets:
        first, *rest = sorted({find(one) for one in members})
        for one in rest:
            leader[one] = first
    numbers: dict[int, int] = {}
    return [numbers.setdefault(find(one), len(numbers)) for one in range(count)]


def _group(name: str, sides: _Sides, width: int, names: _Names) -> UnitGroup | str:
    """Return the group of these sides, or a clause: why it is refused."""
    joined = _with_whole_norm_groups(sides, width, names)
    if isinstance(joined, str):
        return joined
    sides, width = joined
    slices: dict[tuple[str, int], dict[str, TensorSlice]] = defaultdict(dict)
    buffers, norms, sizes = [], [], set()
    for side, units in sides.items():
        found = _places(side, names)
        if isinstance(found, str):
            return found
        path, of = found
        indices = _by_unit(units, width)
        for local, dim in of.parameters:
            full = f"{path}.{local}" if path and local else path or local
            first = names.parameters[id(side.target if not local else getattr(side.target, local))]
            one = TensorSlice(first, dim, indices, of.role)
            if slices[first, dim].setdefault(full, one) != one:
                return f"{full} has channels in two roles"
        buffers += [TensorSlice(f"{path}.{local}" if path else local, dim, indices) for local, dim in of.buffers]
        if isinstance(side.target, nn.Module) and hasattr(side.target, "eps"):
            norms.append(TensorSlice(path, 0, indices))
        if path == name and side.outputs:
            sizes |= {len(one) for one in indices}
    tied = _tied(slices, names)
    if tied or len(sizes) != 1:
        return tied or "its channels depend on each other in unequal numbers"
    return UnitGroup(
        name=name,
        kind=UnitKind.CHANNEL,
        channels=sizes.pop(),
        slices=tuple(next(iter(users.values())) for _, users in sorted(slices.items(), key=lambda pair: pair[0])),
        buffers=tuple(sorted(buffers, key=lambda one: one.path)),
        norms=tuple(sorted(norms, key=lambda one: one.path)),
    )


def _places(side: _Side, names: _Names) -> tuple[str, Places] | str:
    """Return the module's or parameter's path and its places, or a clause: why the group is refused."""
    if not isinstance(side.target, nn.Module):
        return names.parameters[id(side.target)], Places((("", side.dim % side.target.dim()),))
    found = places(side.target, outputs=side.outputs)
    path = names.modules[side.target]
    return f"{path} {found}" if isinstance(found, str) else (path, found)


def _by_unit(units: Mapping[int, int], width: int) -> tuple[tuple[int, ...], ...]:
    gathered: list[list[int]] = [[] for _ in range(width)]
    for index, unit in sorted(units.items()):
        gathered[unit].append(index)
    return tuple(tuple(indices) for indices in gathered)


def _with_whole_norm_groups(sides: _Sides, width: int, names: _Names) -> tuple[_Sides, int] | str:
    """Join units whose channels share a group of a GroupNorm: the others of that group would change."""
    sets: list[set[int]] = []
    for side, units in sides.items():
        if not isinstance(side.target, nn.GroupNorm):
            continue
        if len(units) != side.target.num_channels:
            return f"{names.modules[side.target]} normalises its channels together with others"
        share = side.target.num_channels // side.target.num_groups
        sets += [{units[at] for at in range(low, low + share)} for low in range(0, side.target.num_channels, share)]
    unit_of = _joined(width, iter(sets))
    return {side: {index: unit_of[unit] for index, unit in units.items()} for side, units in sides.items()}, max(
        unit_of
    ) + 1


def _tied(slices: Mapping[tuple[str, int], Mapping[str, TensorSlice]], names: _Names) -> str:
    """Return a clause if a tied parameter is not cut alike for all modules that share it; "" if all are."""
    for (first, _), users in slices.items():
        others = names.users[first] - users.keys()
        if others:
            return f"{next(iter(users))} is tied to {min(others)}, which does not depend on these channels"
        if len({one.units for one in users.values()}) > 1:
            return f"{first} is tied, and its users have these channels at different places"
    return ""


def _checked(group: UnitGroup, model: nn.Module, protected: Collection[str]) -> str:
    """Return a clause if an index is outside its tensor, or a tensor is protected; "" if the group is sound."""
    parameters = dict(model.named_parameters())
    for one in group.slices:
        size = parameters[one.path].shape[one.dim]
        most = max((index for indices in one.units for index in indices), default=-1)
        if most >= size:
            return f"{one.path} has {size} channels, and the traced graph names number {most}: it mixes channels"
        guarded = [name for name in protected if one.path == name or one.path.startswith(f"{name}.")]
        if guarded:
            return f"{guarded[0]} may not be pruned"
    return ""
