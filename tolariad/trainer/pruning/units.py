"""The units that can be pruned: channels or heads that depend on each other, with their places in the parameters.

Promises: plain values, by qualified names. One function, `removed`, says which coordinates go with a choice of units.
Masks and compaction both follow it, so what a mask covers is what compaction removes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import NamedTuple

from msgspec import Struct

from tolariad.core.calc.pruning.budget import UnitKind

# By qualified name, then by dimension: indices, ascending.
Coordinates = dict[str, dict[int, tuple[int, ...]]]


class Fewer(NamedTuple):
    """An attribute of a module counts heads, or channels of heads: of `width` heads, `gone` go."""

    module: str
    attribute: str
    gone: int
    width: int


class Removed(NamedTuple):
    """The parts that are removed with a choice of units: coordinates of parameters, buffers and normalising modules;
    counts of heads.
    """

    parameters: Coordinates
    buffers: Coordinates
    norms: Coordinates
    heads: tuple[Fewer, ...] = ()


class Role(Enum):
    """The relation of a slice to a unit: its rows produce it, its columns read it, a norm's scale does neither."""

    PRODUCES = "produces"
    READS = "reads"
    SCALES = "scales"


class TensorSlice(Struct, frozen=True):
    """Where the units of a group lie in one dimension of one tensor.

    `units` holds, for each unit, its indices in this dimension.
    """

    path: str
    dim: int
    units: tuple[tuple[int, ...], ...]
    role: Role = Role.SCALES


class UnitGroup(Struct, frozen=True, kw_only=True):
    """Units that are pruned one by one, each in all of its tensors at once.

    * `name`: the module that produces them, the first in the model's order.
    * `channels`: the number of this module's channels in one unit.
    * `slices`: the places of the units in parameters; a tied parameter occurs once, under its first name.
    * `buffers`: their places in buffers, which are running statistics.
    * `norms`: their places in normalising modules that the channels pass; `path` names the module.
    * `module`: the attention module, if the units are heads.
    * `attributes`: the attributes of that module that count heads or their channels.
    * `fixed`: the reason why the units can be masked but not removed, as a clause; "" if they can.
    """

    name: str
    kind: UnitKind
    channels: int
    slices: tuple[TensorSlice, ...]
    buffers: tuple[TensorSlice, ...] = ()
    norms: tuple[TensorSlice, ...] = ()
    module: str = ""
    attributes: tuple[str, ...] = ()
    fixed: str = ""

    @property
    def width(self) -> int:
        """The number of units."""
        return len(self.slices[0].units)


class Refusal(Struct, frozen=True):
    """A module whose outputs cannot be pruned, and why, as a clause."""

    name: str
    why: str


class Found(Struct, frozen=True):
    """All groups of a model, in the model's order, and the modules that were refused."""

    groups: tuple[UnitGroup, ...]
    refused: tuple[Refusal, ...] = ()


class PruningRefused(ValueError):
    """Masks or a compaction do not fit. Nothing has changed. The message says what does not fit, and where."""


def removed(groups: Iterable[UnitGroup], chosen: Mapping[str, Iterable[int]]) -> Removed:
    """Return the coordinates of the chosen units, given by name of their group.

    Raises PruningRefused if there is no such group or unit.
    """
    by_name = {group.name: group for group in groups}
    for name, units in chosen.items():
        if name not in by_name:
            raise PruningRefused(f"there is no group {name!r}; the groups are {', '.join(by_name) or 'none'}")
        outside = [unit for unit in units if not 0 <= unit < by_name[name].width]
        if outside:
            raise PruningRefused(f"{name} has units 0 to {by_name[name].width - 1}, not {outside[0]}")
    found = [(by_name[name], units) for name, units in chosen.items()]
    return Removed(
        coordinates((one, units) for group, units in found for one in group.slices),
        coordinates((one, units) for group, units in found for one in group.buffers),
        coordinates((one, units) for group, units in found for one in group.norms),
        tuple(
            Fewer(group.module, attribute, gone, group.width)
            for group, units in found
            if (gone := len(set(units)))
            for attribute in group.attributes
        ),
    )


def coordinates(slices: Iterable[tuple[TensorSlice, Iterable[int]]]) -> Coordinates:
    """Return the coordinates of slices, each with its units."""
    gathered: dict[str, dict[int, set[int]]] = {}
    for one, units in slices:
        indices = {index for unit in units for index in one.units[unit]}
        if indices:
            gathered.setdefault(one.path, {}).setdefault(one.dim, set()).update(indices)
    return {
        path: {dim: tuple(sorted(indices)) for dim, indices in sorted(dims.items())}
        for path, dims in sorted(gathered.items())
    }
