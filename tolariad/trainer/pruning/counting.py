"""The groups of a model as the daemon knows them: widths, and the parameters that go with each unit.

Promises: a parameter that several groups lie in is listed once, and a tied one under its first name alone. What is
counted is what `removal` removes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from torch import nn

from tolariad.core.calc.pruning.analysis import AnalysedGroup
from tolariad.core.calc.pruning.cost import Cut, Shape
from tolariad.trainer.pruning.units import TensorSlice, UnitGroup


class Counted(NamedTuple):
    """The groups, the shapes that their cuts name, and how many parameters the model has."""

    groups: tuple[AnalysedGroup, ...]
    shapes: tuple[Shape, ...]
    parameters: int


def counted_groups(model: nn.Module, groups: Sequence[UnitGroup], unborn: Collection[str] = ()) -> Counted:
    """Return what the daemon needs to count. `unborn`: prefixes of parameters that are no part of the model yet."""
    named = dict(model.named_parameters())
    numbers = {path: at for at, path in enumerate(dict.fromkeys(one.path for group in groups for one in group.slices))}
    return Counted(
        tuple(
            AnalysedGroup(
                name=group.name,
                kind=group.kind,
                width=group.width,
                channels=group.channels,
                cuts=tuple(_cut(one, numbers[one.path]) for one in group.slices),
            )
            for group in groups
        ),
        tuple(tuple(named[path].shape) for path in numbers),
        sum(one.numel() for name, one in named.items() if not name.startswith(tuple(unborn))),
    )


def _cut(one: TensorSlice, parameter: int) -> Cut:
    sizes = tuple(len(indices) for indices in one.units)
    return Cut(parameter, one.dim, sizes[:1] if len(set(sizes)) == 1 else sizes)
