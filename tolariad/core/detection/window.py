"""The last healthy values of one signal: their median, their spread, and the limit that follows.

Values are kept as logarithms while all of them are positive, so that "eight spreads above" means a factor and a loss of
0.02 is judged as one of 8.0 is; a signal that reaches zero or below is kept as it is from then on.

Promises: one owner changes a window in place, `state` gives it as a value, and a window made from that value gives the
same limits ever after, bit for bit. Median and spread are computed anew every `REFRESH` values. It must not know: what a
limit is for.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from enum import Enum
from typing import Final

from msgspec import Struct

REFRESH: Final = 8
# The largest float, not infinity: `value <= limit` must be false for an infinite value.
NO_LIMIT: Final = 1.7976931348623157e308
# What so many of the values reached is part of the signal, however narrow the rest lies: a second task's batches, say.
_OFTEN: Final = 3
# From the median absolute deviation to the standard deviation of a normal distribution.
_TO_SPREAD: Final = 1.4826


class Scale(Enum):
    """How the values of a window are kept."""

    LOG = "log"
    LINEAR = "linear"


class WindowState(Struct, frozen=True):
    """One window as a value; `values` in the order they came, those after the last refresh in `fresh`.

    `floor`: below it nothing is too much, in the signal's own unit; 0 until there were values to know it by.
    """

    scale: Scale = Scale.LOG
    values: tuple[float, ...] = ()
    fresh: tuple[float, ...] = ()
    floor: float = 0.0


class DetectorState(Struct, frozen=True):
    """Everything a detector knows: part of every checkpoint. Levels are on the loss's scale; `jump`: the mean step."""

    loss: WindowState = WindowState()
    grad_norm: WindowState = WindowState()
    fast: float = 0.0
    slow: float = 0.0
    last: float = 0.0
    jump: float = 0.0
    accepted: int = 0
    in_a_row: int = 0


class Window:
    """The window of one signal.

    `fresh` takes new values, on the window's scale; after `REFRESH` of them its owner calls `refresh`. `limit` and
    `explosion_limit` are in the signal's own unit, so that judging a step is a comparison; `NO_LIMIT` before `warmup`.
    For as long as all values are positive, `limit` is never under `floor`, a share of the median of the first values there
    were, and `explosion_limit` never under that median itself: what is no worse than untrained has not exploded. How far values
    lie apart raises both up to `explosion` times that median.
    """

    __slots__ = (
        "_explosion",
        "_floor_share",
        "_grave",
        "_size",
        "_spread_min",
        "_spreads",
        "_warmup",
        "floor",
        "fresh",
        "is_log",
        "limit",
        "median",
        "ordered",
        "spread",
        "values",
    )

    def __init__(
        self,
        state: WindowState,
        *,
        size: int,
        warmup: int,
        spreads: float,
        spread_min: float,
        explosion: float,
        floor: float,
    ) -> None:
        self._size, self._warmup = size, warmup
        self._spreads, self._spread_min, self._explosion = spreads, spread_min, explosion
        self._grave = math.log(explosion)
        self._floor_share, self.floor = floor, state.floor
        self.is_log = state.scale is Scale.LOG
        self.values = list(state.values)
        self.fresh = list(state.fresh)
        self.ordered = sorted(self.values)
        self._set_limits()

    def state(self) -> WindowState:
        """The window as a value."""
        scale = Scale.LOG if self.is_log else Scale.LINEAR
        return WindowState(scale, tuple(self.values), tuple(self.fresh), self.floor)

    @property
    def baseline(self) -> float:
        """The median, in the signal's own unit; 0 before there were enough values to know it."""
        if len(self.ordered) < self._warmup:
            return 0.0
        return math.exp(self.median) if self.is_log else self.median

    def refresh(self) -> None:
        """Take the fresh values in, let the oldest go, compute the limits anew."""
        ordered = self.ordered
        self.values += self.fresh
        ordered += self.fresh
        self.fresh.clear()
        surplus = len(self.values) - self._size
        if surplus > 0:
            ordered.sort()
            for old in self.values[:surplus]:
                del ordered[bisect_left(ordered, old)]
            del self.values[:surplus]
        else:
            ordered.sort()
        self._set_limits()

    def forget(self) -> None:
        """Begin again, on the same scale: what came before says nothing about what comes now."""
        self.values.clear()
        self.fresh.clear()
        self.ordered.clear()
        self._set_limits()

    def go_linear(self) -> None:
        """Keep the values as they are from now on: the signal is not always positive."""
        self.is_log = False
        self.values = [math.exp(value) for value in self.values]
        self.fresh = [math.exp(value) for value in self.fresh]
        self.ordered = sorted(self.values)
        self._set_limits()

    def _set_limits(self) -> None:
        # On the way of every eighth step: the builtins `min` and `max` would cost a fifth of all this.
        ordered = self.ordered
        if len(ordered) < self._warmup:
            self.median = self.spread = 0.0
            self.limit = NO_LIMIT
            return
        median, deviation = median_and_deviation(ordered)
        self.median = median
        least = self._spread_min if self.is_log else self._spread_min * abs(median)
        spread = _TO_SPREAD * deviation
        self.spread = spread = spread if spread > least else least  # noqa: FURB136
        rise, often = self._spreads * spread, ordered[-_OFTEN]
        top, also = median + rise, often + 0.5 * rise
        top = top if top > also else also  # noqa: FURB136
        if not self.is_log:
            self.limit = top
            return
        if self.floor == 0.0 and self._floor_share:
            self.floor = self._floor_share * _exp(median)
        limit = _exp(top)
        if self._floor_share and top - often > self._grave:
            # Losses that lie decades apart are all far from their median: how far says nothing of what is too much.
            limit = min(limit, max(self.explosion_limit, self._explosion * _exp(often)))
        self.limit = limit if limit > self.floor else self.floor  # noqa: FURB136

    @property
    def explosion_limit(self) -> float:
        """Where the signal has exploded. Asked where something was found: to know it for every step would cost too much."""
        if len(self.ordered) < self._warmup:
            return NO_LIMIT
        rise = self._spreads * self.spread
        if not self.is_log:
            # A median next to zero says nothing of how large a loss is; its spread does.
            return self.median + max((self._explosion - 1.0) * abs(self.median), self._explosion * rise)
        grave, apart = self._explosion * _exp(self.median), _exp(self.median + rise)
        if not (self.floor and self._floor_share):
            return max(grave, apart)
        begun = self.floor / self._floor_share
        return max(begun, grave, min(apart, self._explosion * begun))


def _exp(power: float) -> float:
    return math.exp(power) if power < 709.0 else NO_LIMIT


def median_and_deviation(ordered: list[float]) -> tuple[float, float]:
    """The (lower) median of sorted values and their median absolute deviation from it.

    The deviation is the least radius around the median that holds more than half of the values; which run of neighbours
    those are is found by bisection, since the left end of a run comes nearer where its right end goes away.
    """
    count = len(ordered)
    median = ordered[(count - 1) // 2]
    half = count // 2
    low, high = 0, count - half - 1
    while low < high:
        middle = (low + high) // 2
        if median - ordered[middle] > ordered[middle + half] - median:
            low = middle + 1
        else:
            high = middle
    radius = max(median - ordered[low], ordered[low + half] - median)
    if low > 0:
        radius = min(radius, max(median - ordered[low - 1], ordered[low - 1 + half] - median))
    return median, radius
