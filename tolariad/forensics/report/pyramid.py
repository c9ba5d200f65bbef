"""Curves with few points in which every extreme is kept: buckets of least and greatest values, and exact windows.

Promises: the least and the greatest value of each bucket are those of its steps, whatever the number of steps. A value
that is not finite is in no bucket and is counted.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

BUCKETS: Final = 2000
# An exact window around an event, in steps on each side; so many windows a curve.
WINDOW: Final = 60
WINDOWS_MAX: Final = 40
_DIGITS: Final = 6


class Exact(msgspec.Struct, frozen=True):
    """Every value between two places. None: it is not finite, or the step does not have it."""

    x: list[float]
    y: list[float | None]


class Curve(msgspec.Struct, frozen=True, omit_defaults=True):
    """A curve over `x`, by least and greatest values; `high` None: every step is there, and `low` has its value.

    None among the values: there is none that is finite. `not_finite`: how many are not.
    """

    x: list[float]
    low: list[float | None]
    high: list[float | None] | None = None
    exact: list[Exact] = []
    not_finite: int = 0


def curve(x: Sequence[float], y: Sequence[float], around: Iterable[float] = ()) -> Curve:
    """Return the curve of `y` over `x`, which rises. `around`: places of which the neighbourhood is kept exactly."""
    count = len(x)
    if count <= 2 * BUCKETS:
        shown = [_rounded(value) for value in y]
        return Curve([_place(one) for one in x], shown, not_finite=shown.count(None))
    size = -(-count // BUCKETS)
    places, low, high, missing = [], [], [], 0
    for start in range(0, count, size):
        # As a list: an array makes a new number for each look at a value, and there are three.
        part = list(y[start : start + size])
        # One sum tells whether any value is not finite: looking at each would take longer than everything else.
        if not math.isfinite(sum(part)):
            finite = [one for one in part if math.isfinite(one)]
            missing += len(part) - len(finite)
            part = finite
        places.append(_place(x[start]))
        low.append(_rounded(min(part)) if part else None)
        high.append(_rounded(max(part)) if part else None)
    return Curve(places, low, high, list(_windows(x, y, around)), missing)


def _windows(x: Sequence[float], y: Sequence[float], around: Iterable[float]) -> Iterable[Exact]:
    done = -1
    for number, place in enumerate(sorted(set(around))):
        if number == WINDOWS_MAX:
            return
        at = bisect.bisect_left(x, place)
        first, last = max(done + 1, at - WINDOW), min(len(x), at + WINDOW + 1)
        if first < last:
            yield Exact([_place(one) for one in x[first:last]], [_rounded(one) for one in y[first:last]])
            done = last - 1


def _place(value: float) -> float:
    return int(value) if value == int(value) else value


def _rounded(value: float) -> float | None:
    """Return the number with as many digits as a chart can show, or None if it is not finite."""
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
