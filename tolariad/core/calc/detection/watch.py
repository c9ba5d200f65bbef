"""What a run does after a finding for a finite rise: it keeps the state from before it, goes on, and watches.

| the level, a median of 32 losses | outcome |
|---|---|
| at most half of the rise above the usual level, and at most x2 above it | CAME_DOWN: the rise was healthy |
| after at least 64 steps: above the first one by x2, and by half of the rise | GROWS |
| neither, until `HORIZON` steps have passed | STAYS |

Promises: a pure fold over losses. Its state is a value of at most 40 numbers and part of every checkpoint. A loss that
is not finite enters nothing: the detector answers it at once.
"""

import math
from enum import Enum
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from tolariad.core.calc.detection.rules import LEAST, NO_LIMIT

# How many steps a rise is watched, and how many losses its level is the median of (docs/detection-study.md).
HORIZON: Final = 128
WINDOW: Final = 32
_GROWN_FROM: Final = 64
# The level has come down if less than this share of the rise is left, and at most this factor.
_LEFT: Final = 0.5
_LEFT_FACTOR: Final = 2.0


class Outcome(Enum):
    """How a watch ended."""

    CAME_DOWN = "came_down"
    STAYS = "stays"
    GROWS = "grows"


class Watch(Struct, frozen=True):
    """A rise that is watched. Losses are in their own unit.

    `base`: the usual loss before the rise. `value`: the loss that was found. `scale`: 0 for positive losses, which are
    compared by factors; else the least distance that counts, for losses of either sign. `seen`: losses since the
    finding. `last`: the newest of them. `first`: the level of the first 32.
    """

    base: float
    value: float
    scale: float = 0.0
    horizon: int = HORIZON
    seen: int = 0
    last: tuple[float, ...] = ()
    first: float | None = None

    @property
    def is_silent(self) -> bool:
        """Whether no loss rose: nothing is to come down, and the watch ends at its horizon."""
        return self.value == self.base == 0.0

    @property
    def ceiling(self) -> float:
        """The level at or below which the loss has come down."""
        if self.scale:
            return self.base + _LEFT * max(self.value - self.base, self.scale)
        base, value = max(self.base, LEAST), max(self.value, LEAST)
        return base * min(_LEFT_FACTOR, math.exp(_LEFT * max(0.0, math.log(value / base))))

    def is_above(self, level: float, other: float) -> bool:
        """Return whether `level` has grown beyond `other` by more than the noise of a median."""
        if self.scale:
            return level > other + max(self.scale, 0.5 * (other - self.base))
        other, base = max(other, LEAST), max(self.base, LEAST)
        return level > other * max(2.0, math.sqrt(max(1.0, other / base)))


def followed(watch: Watch, loss: float) -> tuple[Watch, Outcome | None]:
    """Return the watch after the next step's loss, and how it ended; None: the run goes on watching."""
    if not -NO_LIMIT <= loss <= NO_LIMIT:
        return watch, None
    last = (*watch.last, loss)[-WINDOW:]
    seen = watch.seen + 1
    watch = replace(watch, seen=seen, last=last)
    if len(last) < WINDOW or seen % 8:
        return watch, None
    level = level_of(last)
    if watch.first is None:
        watch = replace(watch, first=level)
    if level <= watch.ceiling:
        return watch, Outcome.CAME_DOWN
    if watch.first is not None and seen >= _GROWN_FROM and watch.is_above(level, watch.first):
        return watch, Outcome.GROWS
    return watch, Outcome.STAYS if seen >= watch.horizon else None


def level_of(losses: tuple[float, ...]) -> float:
    """Return the lower median of the losses."""
    return sorted(losses)[(len(losses) - 1) // 2]
