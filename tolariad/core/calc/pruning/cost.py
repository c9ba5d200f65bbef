"""How many parameters a choice of units removes: each number of the model once, however many units cover it.

A unit is a row of one parameter, a column of another, and a scale of a third. A number that lies in a removed row and
in a removed column is removed once. So the cost of a unit depends on what is removed with it.

Promises: exact for the parameters that a compaction removes: what is left of a parameter is the product of what is left
of its dimensions. Pure values; no tensor is needed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

Shape = tuple[int, ...]


class Cut(Struct, frozen=True):
    """Where the units of a group lie in one dimension of one parameter.

    `parameter` is an index into the list of shapes. `indices` holds the number of the dimension's indices that belong
    to each unit; a single number holds for all units.
    """

    parameter: int
    dim: int
    indices: tuple[int, ...]

    def of(self, unit: int) -> int:
        """Return how many indices of the dimension go with this unit."""
        return self.indices[unit] if len(self.indices) > 1 else self.indices[0]


class ParameterCount:
    """Counts the parameters that go as units are taken, one after the other. `gone` is their number so far."""

    def __init__(self, shapes: Sequence[Shape]) -> None:
        self.gone = 0
        self._left = [list(shape) for shape in shapes]

    def cost(self, cuts: Iterable[Cut], unit: int) -> int:
        """Return how many parameters go with this unit beyond those that are gone."""
        return sum(math.prod(self._left[at]) - math.prod(left) for at, left in self._without(cuts, unit).items())

    def take(self, cuts: Iterable[Cut], unit: int) -> int:
        """Let the unit go. Return how many parameters went with it."""
        left = self._without(cuts, unit)
        cost = sum(math.prod(self._left[at]) - math.prod(sizes) for at, sizes in left.items())
        for at, sizes in left.items():
            self._left[at] = sizes
        self.gone += cost
        return cost

    def _without(self, cuts: Iterable[Cut], unit: int) -> dict[int, list[int]]:
        """Return the sizes, without the unit, of each parameter that it touches."""
        left: dict[int, list[int]] = {}
        for cut in cuts:
            sizes = left.setdefault(cut.parameter, list(self._left[cut.parameter]))
            sizes[cut.dim] = max(0, sizes[cut.dim] - cut.of(unit))
        return left


def counted(
    shapes: Sequence[Shape], cuts: Mapping[str, Sequence[Cut]], units: Mapping[str, Iterable[int]]
) -> ParameterCount:
    """Return the count after these units went. A group without cuts is left out."""
    count = ParameterCount(shapes)
    for name, ones in units.items():
        for unit in ones:
            count.take(cuts.get(name, ()), unit)
    return count


def fault_of_cuts(shapes: Sequence[Shape], cuts: Sequence[Cut], width: int) -> str:
    """Return what is impossible in the cuts of a group of so many units, as a clause; "" if nothing is."""
    for cut in cuts:
        if not (0 <= cut.parameter < len(shapes) and 0 <= cut.dim < len(shapes[cut.parameter])):
            return f"there is no dimension {cut.dim} of parameter {cut.parameter}"
        if len(cut.indices) not in (1, width) or min(cut.indices) < 0:
            return f"its {width} units have {len(cut.indices)} numbers of indices"
        held = sum(cut.indices) if len(cut.indices) > 1 else width * cut.indices[0]
        if held > shapes[cut.parameter][cut.dim]:
            return f"its units have {held} indices in a dimension of {shapes[cut.parameter][cut.dim]}"
    return ""
