"""The groups of channels that depend on each other, from Torch-Pruning's dependency graph.

Promises: the model is not touched; a copy is traced. A group is returned only if it passes three checks. Every tensor
in it is known. Every index lies within its tensor. A tied parameter is cut alike for all modules that share it.
Torch-Pruning itself checks none of this. `verify` then shows by numbers that a group is independent of the rest.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import nn

from tolariad.core.pruning.budget import UnitKind
from tolariad.trainer.pruning.modules import ChannelDims, linear_sides, places, unknown_to_torch_pruning
from tolariad.trainer.pruning.units import Found, PruningRefused, Refusal, Role, TensorSlice, UnitGroup
from tolariad.trainer.torch_private.modules import CONVOLUTIONS
from tolariad.trainer.torch_private.tensors import leaves_in

if TYPE_CHECKING:
    from torch import Tensor

_OF_TORCH_PRUNING = "torch_pruning.ops"


class _Side(NamedTuple):
    """A module's outputs or inputs, or a parameter of its own with the dimension that holds channels."""

    target: Any
    outputs: bool
    dim: int = 0


class _Index(NamedTuple):
    """An index of a tensor, and the channel of the root from which it was reached. Torch-Pruning gives the names."""

    idx: int
    root_idx: int


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


def trace(
    copy: nn.Module,
    inputs: tuple[Any, ...],
    protected: Collection[str] = (),
    heads: Sequence[UnitGroup] = (),
    used: Collection[str] = (),
) -> Found:
    """Return the groups of `copy`, which is traced with `inputs` and may be changed by it, and what is refused.

    All parameters of `copy` must need a gradient. `protected`: names of modules or parameters that no group may touch.
    `heads`: the layers that compute them are not pruned by channels as well. `used`: parameters that the outputs depend
    on. Raises PruningRefused if the model cannot be traced, ImportError without torch-pruning (extra `pruning`).
    """
    import torch_pruning as tp

    try:
        graph = tp.DependencyGraph().build_dependency(
            copy,
            inputs,
            forward_fn=lambda model, given: model(*given),
            output_transform=_marked,
            customized_pruners=unknown_to_torch_pruning(copy),
            verbose=False,
        )
    except Exception as error:
        raise PruningRefused(f"the model cannot be traced: {type(error).__name__}: {error}") from error
    names = _Names(copy)
    slices = [one for group in heads for one in group.slices]
    of_heads = {one.path.rpartition(".")[0] for one in slices if one.role is Role.PRODUCES}
    most = max(size for one in copy.parameters() for size in one.shape)
    groups, refused, covered = [], [], set()
    for module, name in names.modules.items():
        if module in covered or name in of_heads or module not in graph.module2node:
            continue
        if not linear_sides(module) and not isinstance(module, CONVOLUTIONS):
            continue
        found = _sides(graph, module, most)
        if isinstance(found, str):
            refused.append(Refusal(name, found))
            continue
        sides, width, is_output = found
        covered |= {side.target for side in sides if side.outputs}
        made: UnitGroup | str = "its channels are outputs of the model" if is_output else ""
        made = made or _group(name, sides, width, names)
        made = made if isinstance(made, str) else _checked(made, copy, protected) or made
        if isinstance(made, str):
            refused.append(Refusal(name, made))
        else:
            groups.append(made)
    said = {*(names.modules[one] for one in covered if isinstance(one, nn.Module)), *(one.name for one in refused)}
    refused += _not_said(names, said, {one.path for group in [*heads, *groups] for one in group.slices}, used)
    return Found(tuple(groups), tuple(refused))


def _not_said(names: _Names, said: set[str], held: set[str], used: Collection[str]) -> Iterator[Refusal]:
    """Yield the other modules with weights: neither they nor a module around them is `said`, and no group holds one."""
    for module, name in names.modules.items():
        weights = {names.parameters[id(one)] for one in module.parameters(recurse=False) if one.dim() > 1}
        around = {".".join(name.split(".")[:depth]) for depth in range(1, name.count(".") + 2)}
        if not weights or around & said or weights & held:
            continue
        why = places(module, outputs=True)
        if not weights & set(used):
            why = "the model's outputs do not depend on it"
        # The model itself, if it has parameters of its own, has no name.
        yield Refusal(
            name or "the model", why if isinstance(why, str) else "no linear or convolutional layer has its channels"
        )


def _marked(outputs: Any) -> list[Tensor]:
    """Return the outputs, each as the result of an operation: Torch-Pruning does not see a module's own result."""
    return [one * 1.0 for one in leaves_in(outputs) if getattr(one, "grad_fn", None) is not None]


def _sides(graph: Any, root: nn.Module, most: int) -> tuple[_Sides, int, bool] | str:
    """Return what depends on the root's output channels, by unit; the number of units; whether they are outputs.

    Channels that reach the same index are one unit, as in the two halves of a gate. Torch-Pruning's own search keeps
    only the first of them. It does not end with rotary embeddings, because each round shifts the indices. Return a
    clause if an index is not below `most`.
    """
    prune, width = graph.get_pruner_of_module(root).prune_out_channels, graph.get_out_channels(root)
    origins: dict[tuple[Any, Any], dict[int, int]] = defaultdict(dict)
    met: list[set[int]] = []
    pending = [(graph.module2node[root], prune, [_Index(channel, channel) for channel in range(width)])]
    while pending:
        node, how, indices = pending.pop()
        known = origins[node, how]
        fresh = []
        for one in indices:
            if one.idx not in known:
                fresh.append(one)
            elif known[one.idx] != one.root_idx:
                met.append({known[one.idx], one.root_idx})
            known.setdefault(one.idx, one.root_idx)
        if any(not 0 <= one.idx < most for one in fresh):
            return "the traced graph names more channels than any layer has: it mixes them"
        if fresh:
            pending += [
                (to.target, to.handler, _mapped(to, fresh)) for to in node.dependencies if to.is_triggered_by(how)
            ]
    unit_of = _joined(width, iter(met))
    sides: _Sides = defaultdict(dict)
    for (node, how), known in origins.items():
        if known and type(node.module).__module__ != _OF_TORCH_PRUNING:
            sides[_side(graph, node, how)].update({index: unit_of[channel] for index, channel in known.items()})
    is_output = any(known and type(node.module).__name__ == "_OutputOp" for (node, _), known in origins.items())
    return sides, max(unit_of) + 1, is_output


def _mapped(dependency: Any, indices: list[_Index]) -> list[_Index]:
    for mapping in dependency.index_mapping:
        indices = indices if mapping is None else list(mapping(indices))
    return indices


def _side(graph: Any, node: Any, how: Any) -> _Side:
    if isinstance(node.module, nn.Module):
        return _Side(node.module, outputs=graph.is_out_channel_pruning_fn(how))
    return _Side(node.module, outputs=False, dim=node.pruning_dim)


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


def _places(side: _Side, names: _Names) -> tuple[str, ChannelDims] | str:
    """Return the module's or parameter's path and its places, or a clause: why the group is refused."""
    if not isinstance(side.target, nn.Module):
        return names.parameters[id(side.target)], ChannelDims((("", side.dim % side.target.dim()),))
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
    """Return a clause if no unit can go, an index is outside its tensor, or a tensor is protected; "" otherwise."""
    if group.width < 2:
        return "its channels are a single unit, and a layer keeps one"
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
