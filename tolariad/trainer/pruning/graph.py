"""The groups of channels that depend on each other, as the dependency graph has them.

Promises: the model is not touched; a copy is traced. A group is returned only if it passes these checks. Every tensor
in it is known, and of real numbers. Every index lies within its tensor, and in no other group. A tied parameter is cut
alike for all modules that share it. No layer that the traced batch did not use may have its channels. Torch-Pruning
itself checks none of this. `verify` then shows by numbers that a group is independent of the rest. A layer at which the
graph fails is refused by name, and the others are searched.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

from torch import nn

from tolariad.core.calc.pruning.budget import UnitKind
from tolariad.trainer.pruning.copies import copied
from tolariad.trainer.pruning.dependency import Dependents, Graph, Side, Sides, joined
from tolariad.trainer.pruning.modules import ChannelDims, has_values, linear_sides, places
from tolariad.trainer.pruning.units import Found, PruningRefused, Refusal, Role, TensorSlice, UnitGroup
from tolariad.trainer.torch_private.modules import CONVOLUTIONS

if TYPE_CHECKING:
    from tolariad.trainer.pruning.trial import Trial


class _Names:
    """The names of modules, parameters and buffers. Tied parameters have their first name, and all their users."""

    def __init__(self, model: nn.Module) -> None:
        self.modules = {module: name for name, module in model.named_modules()}
        self.parameters = {id(one): name for name, one in model.named_parameters()}
        self.users: dict[str, set[str]] = defaultdict(set)
        for name, parameter in model.named_parameters(remove_duplicate=False):
            self.users[self.parameters[id(parameter)]].add(name)


def trace(trial: Trial, protected: Collection[str] = (), heads: Sequence[UnitGroup] = ()) -> Found:
    """Return the groups of a trial's model, of which a copy is traced, and the layers that are refused.

    `protected`: names of modules or parameters that no group may touch. `heads`: the layers that compute them are not
    pruned by channels as well. Raises PruningRefused if the model cannot be traced, ImportError without torch-pruning
    (extra `pruning`).
    """
    model = copied(trial.model)
    try:
        graph = Graph(model, trial)
    except ImportError:
        raise
    except Exception as error:
        raise PruningRefused(f"the model cannot be traced: {type(error).__name__}: {error}") from error
    names, checks = _Names(model), _Checks(model, trial, protected, heads)
    of_heads = {one.path.rpartition(".")[0] for group in heads for one in group.slices if one.role is Role.PRODUCES}
    groups, refused, covered = [], [], set[Any]()
    for module, name in names.modules.items():
        if module in covered or name in of_heads or not graph.has(module):
            continue
        if not _is_layer(module):
            continue
        try:
            found = graph.dependents(module)
            made = found.why or _group(name, found, names)
            why = made if isinstance(made, str) else checks.fault_of(made)
        except Exception as error:  # noqa: BLE001 - the graph is a guess, and fails in as many ways as there are models
            found, made = Dependents({}, 0, ""), ""
            why = f"the traced graph cannot follow its channels ({type(error).__name__}: {error})"
        covered |= {side.target for side in found.sides if side.outputs}
        if why or isinstance(made, str):
            refused.append(Refusal(name, why))
            refused += [
                Refusal(one, f"its channels go with those of {name}") for one in _layers_with(name, found, names)
            ]
        else:
            groups.append(made)
    said = {*(names.modules[one] for one in covered if isinstance(one, nn.Module)), *(one.name for one in refused)}
    refused += _not_said(names, said, {one.path for group in [*heads, *groups] for one in group.slices}, trial)
    return Found(tuple(groups), tuple(refused))


def _is_layer(target: object) -> TypeGuard[nn.Module]:
    return isinstance(target, CONVOLUTIONS) or (isinstance(target, nn.Module) and bool(linear_sides(target)))


def _layers_with(name: str, found: Dependents, names: _Names) -> list[str]:
    """Return the other layers whose channels go with those of the layer `name`: each of them has its own refusal."""
    return sorted(
        {names.modules[side.target] for side in found.sides if side.outputs and _is_layer(side.target)} - {name}
    )


def _not_said(names: _Names, said: set[str], held: set[str], trial: Trial) -> Iterator[Refusal]:
    """Yield the other modules with weights: neither they nor a module around them is `said`, and no group holds one."""
    for module, name in names.modules.items():
        is_opaque = name in trial.opaque
        own = module.parameters(recurse=is_opaque)
        weights = {names.parameters[id(one)] for one in own if is_opaque or not has_values(one) or one.dim() > 1}
        around = {".".join(name.split(".")[:depth]) for depth in range(1, name.count(".") + 2)}
        if not weights or around & said or weights & held:
            continue
        if is_opaque:
            said.add(name)
        # The model itself, if it has parameters of its own, has no name.
        yield Refusal(name or "the model", trial.opaque.get(name) or _why_not(module, weights, trial))


def _why_not(module: nn.Module, weights: set[str], trial: Trial) -> str:
    if not weights & trial.used:
        return "the model's outputs do not depend on it"
    why = places(module, outputs=True)
    return why if isinstance(why, str) else "no linear or convolutional layer has its channels"


def _group(name: str, found: Dependents, names: _Names) -> UnitGroup | str:
    """Return the group of these sides, or a clause: why it is refused."""
    whole = _with_whole_norm_groups(found.sides, found.width, names)
    if isinstance(whole, str):
        return whole
    sides, width = whole
    slices: dict[tuple[str, int], dict[str, TensorSlice]] = defaultdict(dict)
    buffers, norms, sizes = [], [], set()
    for side, units in sides.items():
        place = _places(side, names)
        if isinstance(place, str):
            return place
        path, of = place
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


def _places(side: Side, names: _Names) -> tuple[str, ChannelDims] | str:
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


def _with_whole_norm_groups(sides: Sides, width: int, names: _Names) -> tuple[Sides, int] | str:
    """Join units whose channels share a group of a GroupNorm: the others of that group would change."""
    sets: list[set[int]] = []
    for side, units in sides.items():
        if not isinstance(side.target, nn.GroupNorm):
            continue
        if len(units) != side.target.num_channels:
            return f"{names.modules[side.target]} normalises its channels together with others"
        share = side.target.num_channels // side.target.num_groups
        sets += [{units[at] for at in range(low, low + share)} for low in range(0, side.target.num_channels, share)]
    unit_of = joined(width, iter(sets))
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


class _Checks:
    """Checks of a group that depend on the other groups."""

    def __init__(self, model: nn.Module, trial: Trial, protected: Collection[str], heads: Sequence[UnitGroup]) -> None:
        self._parameters = {name: one for name, one in model.named_parameters() if has_values(one)}
        self._protected = protected
        self._idle = {name: _channel_counts(model.get_submodule(name)) for name in trial.idle}
        self._taken: dict[tuple[str, int], set[int]] = defaultdict(set)
        for group in heads:
            self._take(group)

    def fault_of(self, group: UnitGroup) -> str:
        """Return a clause: why no unit of the group may go. If there is none, return "" and take its indices."""
        if group.width < 2:
            return "its channels are a single unit, and a layer keeps one"
        for one in group.slices:
            tensor, indices = self._parameters[one.path], [index for indices in one.units for index in indices]
            size = tensor.shape[one.dim]
            if max(indices, default=-1) >= size:
                most = max(indices)
                return f"{one.path} has {size} channels, and the traced graph names number {most}: it mixes channels"
            if not tensor.is_floating_point():
                return f"{one.path} holds {str(tensor.dtype).removeprefix('torch.')}: only real numbers are ranked"
            if not self._taken[one.path, one.dim].isdisjoint(indices):
                return f"{one.path} has channels that another layer has as well"
            guarded = [name for name in self._protected if one.path == name or one.path.startswith(f"{name}.")]
            if guarded:
                return f"{guarded[0]} may not be pruned"
            for name, counts in self._idle.items():
                if size in counts:
                    return f"{name} may have its channels too: the batch that was traced does not use it"
        self._take(group)
        return ""

    def _take(self, group: UnitGroup) -> None:
        for one in group.slices:
            self._taken[one.path, one.dim].update(index for indices in one.units for index in indices)


def _channel_counts(module: nn.Module) -> set[int]:
    """Return how many channels the sides of a module may have."""
    sides = 2 if linear_sides(module) or isinstance(module, CONVOLUTIONS) else None
    weights = (one for one in module.parameters(recurse=False) if has_values(one) and one.dim() > 1)
    return {size for one in weights for size in one.shape[:sides] if size > 1}
