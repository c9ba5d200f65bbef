"""The envelope of one signal: its level, its spread, and how far single values lie above the rest.

Values are kept as logarithms as long as all of them are positive. A distance is then a factor, so a loss of 0.02 is
judged like one of 8.0. After the first negative value they are kept as they are, and the state is converted once.

Promises: a pure fold over values, changed in place by one owner. An envelope made from `state()` continues with the
same bits. Every finite value enters, skipped ones too, so the envelope can adapt to any new level.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from tolariad.core.calc.detection.rules import NO_LIMIT

# REFRESH: values between two refreshes. BLOCK: values of a block, and of the level's median. BLOCKS: blocks remembered.
REFRESH: Final = 8
BLOCK: Final = 32
BLOCKS: Final = 32
# Excesses are kept as maxima of groups, so that the oldest can be dropped: 16 groups of 256 values.
_GROUP: Final = 256
_GROUPS: Final = 16
# The spread averages the interquartile ranges of this many blocks, scaled to a normal standard deviation.
_SPREAD_BLOCKS: Final = 16
TO_SPREAD: Final = 0.7413
_SPREAD_MIN: Final = 0.02
# One value raises the excess to at most this many times the limit's distance: one absurd value must not disable the
# limit for 4096 steps.
_EXCESS_GROWTH: Final = 3.0


class Scale(Enum):
    """How the values of an envelope are kept: as logarithms or as they are."""

    LOG = "log"
    LINEAR = "linear"


@dataclass(slots=True)
class EnvelopeState:
    """One envelope as a value. `fresh` is in the signal's own unit, everything else on its scale.

    * `blocks`: the levels of the last blocks.
    * `tops`: for each block, the distance of its third highest value from its level.
    * `since`: the number of values since the last block ended.
    * `excesses`: the largest excess of each group; the last is the group in progress.
    * `in_group`: the number of values in the group in progress.
    """

    scale: Scale = Scale.LOG
    count: int = 0
    last: list[float] = field(default_factory=list)
    fresh: list[float] = field(default_factory=list)
    level: float = 0.0
    spread: float = 0.0
    spread_blocks: int = 0
    blocks: list[float] = field(default_factory=list)
    tops: list[float] = field(default_factory=list)
    since: int = 0
    excesses: list[float] = field(default_factory=lambda: [0.0])
    in_group: int = 0


@dataclass(slots=True)
class Envelope(EnvelopeState):
    """The envelope of one signal. Its owner appends raw values to `fresh` and calls `refresh` after `REFRESH` of them.

    * `level`: the median of the last 32 values.
    * `base`: the lower quartile of the block levels.
    * `excess`: the largest distance of one of the last 4096 values from the level of its time.
    * `spread`: a robust standard deviation.
    * `reach`: the distance of the owner's limit from the level. One value raises the excess to three times that at
      most.
    """

    reach: float = NO_LIMIT
    block_ended: bool = False
    # The fields below follow from the state.
    is_log: bool = True
    ordered: list[float] = field(default_factory=list)
    base: float = 0.0
    excess: float = 0.0
    past_excess: float = 0.0

    def __post_init__(self) -> None:
        """Compute the fields that the state determines."""
        self.is_log = self.scale is Scale.LOG
        self.ordered = sorted(self.last)
        self._recall()

    def _recall(self) -> None:
        """Compute the fields that the others determine."""
        self.past_excess = max(self.excesses[:-1], default=0.0)
        self.excess = max(self.past_excess, self.excesses[-1])
        self.base = lower_quartile(self.blocks) if self.blocks else 0.0

    def limit_at(self, reach: float) -> None:
        """Remember how far from the level the owner's limit lies."""
        self.reach = reach

    def refresh(self) -> None:
        """Add the fresh values: compute level and excess again, and end the block if it is full."""
        fresh = self.fresh
        values = list(map(_log, fresh)) if self.is_log else fresh.copy()
        fresh.clear()
        taken = len(values)
        # The builtins `min` and `max` of two values would cost a tenth of this function.
        if self.count:
            excess, most = max(values) - self.level, _EXCESS_GROWTH * self.reach
            excess = excess if excess < most else most  # noqa: FURB136
            excesses = self.excesses
            if excess > excesses[-1]:
                excesses[-1] = excess
                self.excess = max(self.excess, excess)
        last = self.last
        last += values
        del last[:-BLOCK]
        self.ordered = ordered = sorted(last)
        self.level = ordered[(len(ordered) - 1) // 2]
        self.count += taken
        self.in_group = in_group = self.in_group + taken
        if in_group >= _GROUP:
            self._next_group()
        self.since = since = self.since + taken
        self.block_ended = since >= BLOCK
        if since >= BLOCK:
            self._end_block()

    def _next_group(self) -> None:
        self.in_group = 0
        self.excesses.append(0.0)
        del self.excesses[: -_GROUPS - 1]
        self._recall()

    def _end_block(self) -> None:
        self.since = 0
        ordered, blocks = self.ordered, self.blocks
        blocks.append(self.level)
        del blocks[:-BLOCKS]
        self.tops.append(ordered[-3] - self.level)
        del self.tops[:-BLOCKS]
        self.base = lower_quartile(blocks)
        least = self.least_spread
        spread = TO_SPREAD * (ordered[23] - ordered[8])
        if self.spread_blocks and spread > 2.0 * self.spread:
            spread = 2.0 * self.spread
        spread = max(spread, least)
        if self.spread_blocks < _SPREAD_BLOCKS:
            self.spread_blocks += 1
        self.spread += (spread - self.spread) / self.spread_blocks

    @property
    def often(self) -> float:
        """Return how far the third highest value of a block lay above its level, at most.

        The last two blocks may hold a fault, so they do not count.
        """
        tops = self.tops
        return max(tops[:-2]) if len(tops) > 2 else max(tops, default=0.0)

    def level_now(self) -> float:
        """Return the level including the fresh values."""
        fresh = [_log(one) for one in self.fresh] if self.is_log else self.fresh
        ordered = sorted((self.last + fresh)[-BLOCK:])
        return ordered[(len(ordered) - 1) // 2]

    @property
    def least_spread(self) -> float:
        """Return the smallest spread allowed: a fiftieth of the value."""
        return _SPREAD_MIN if self.is_log else _SPREAD_MIN * abs(self.level)

    def begin_again(self) -> None:
        """Take the present level as the base, and drop the levels before it."""
        self.blocks[:] = [self.level]
        self.base = self.level

    def admit(self, value: float) -> None:
        """Count `value`, in the signal's own unit, as one that occurs occasionally, however large it is."""
        excess = (_log(value) if self.is_log else value) - self.level
        self.excesses[-1] = max(self.excesses[-1], excess)
        self.excess = max(self.excess, excess)

    def go_linear(self) -> None:
        """Keep the values as they are from now on: the signal is not always positive."""
        level, spread = self.level, self.spread
        self.scale, self.is_log = Scale.LINEAR, False
        self.last = [math.exp(one) for one in self.last]
        self.ordered = sorted(self.last)
        self.blocks = [math.exp(one) for one in self.blocks]
        self.tops = [linear(level, one) for one in self.tops]
        self.excesses = [linear(level, one) for one in self.excesses]
        self.level = math.exp(level) if self.count else 0.0
        self.spread = spread * self.level
        self.reach = linear(level, self.reach)
        self._recall()


def linear(level: float, distance: float) -> float:
    """Convert a distance above a level, both logarithms, to the signal's own unit."""
    return exp(level + distance) - exp(level) if distance < NO_LIMIT else NO_LIMIT


def lower_quartile(values: list[float]) -> float:
    """Return the value that a quarter of `values` lie below."""
    return sorted(values)[(len(values) - 1) // 4]


def upper_quartile(values: list[float]) -> float:
    """Return the value that a quarter of `values` lie above."""
    return sorted(values)[(3 * len(values)) // 4]


def exp(power: float) -> float:
    """Return e to the `power`, or the largest float if that overflows."""
    return math.exp(power) if power < 709.0 else NO_LIMIT


_log = math.log
