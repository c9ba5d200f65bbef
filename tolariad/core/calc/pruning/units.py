"""Sets of units: indices by the name of their group, ascending.

Promises: pure functions; a group without a unit has no entry.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import TypeAlias

# Indices in the model as it is, so they are counted anew after a compaction.
Units: TypeAlias = dict[str, tuple[int, ...]]


def joined(several: Iterable[Mapping[str, tuple[int, ...]]]) -> Units:
    """Return the units of all of them."""
    found: dict[str, set[int]] = {}
    for one in several:
        for name, units in one.items():
            found.setdefault(name, set()).update(units)
    return {name: tuple(sorted(found[name])) for name in sorted(found) if found[name]}


def without(units: Mapping[str, tuple[int, ...]], others: Mapping[str, tuple[int, ...]]) -> Units:
    """Return the units that are not among the others."""
    left = {name: tuple(one for one in ones if one not in others.get(name, ())) for name, ones in units.items()}
    return {name: ones for name, ones in left.items() if ones}


def renumbered(units: Mapping[str, tuple[int, ...]], removed: Mapping[str, tuple[int, ...]]) -> Units:
    """Return the units by their numbers after the others were removed; those removed are left out."""
    left = without(units, removed)
    return {name: tuple(one - bisect_left(removed.get(name, ()), one) for one in ones) for name, ones in left.items()}


def count_of(units: Mapping[str, tuple[int, ...]]) -> int:
    """Return how many units there are."""
    return sum(len(ones) for ones in units.values())


def fault_of(units: Mapping[str, tuple[int, ...]]) -> str:
    """Return what is wrong with a set of units, as a clause; "" if nothing is."""
    for name, ones in units.items():
        if not ones or ones[0] < 0 or any(a >= b for a, b in pairwise(ones)):
            return f"the units of {name} do not ascend from 0"
    return ""
