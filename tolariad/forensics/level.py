"""The level of loss and gradient norm around an incident: when it began to climb, and when it was back.

Promises: pure functions of the steps' numbers. A level is a median, so one odd step changes none.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Final

import msgspec

STEPS_BEFORE: Final = 256
STEPS_AFTER: Final = 4096
_LEVEL_STEPS_MIN: Final = 8
# From this factor of its usual value on a gradient norm climbs.
_CLIMBS: Final = 2.0
# The median of so many steps is back if it is below so many times the usual.
_BACK_STEPS: Final = 5
_BACK: Final = 1.25


class Step(msgspec.Struct, frozen=True):
    """The numbers of one step. A norm that was not measured is below 0."""

    step: int
    loss: float
    grad_norm: float


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """What the numbers were before an incident, and what they did after it.

    `climbs_from`: the first of the steps immediately before it whose gradient norm was above twice its usual; None: it
    gave no warning. `back_at`: the first step from which on loss and norm were at their usual level; None: not yet.
    `looked_at`: how many steps after it were looked at.
    """

    loss: float
    grad_norm: float | None
    climbs_from: int | None
    back_at: int | None
    looked_at: int


def level_around(before: Sequence[Step], after: Sequence[Step]) -> Level | None:
    """Return the level around a place between two steps; None if too few steps were made before it."""
    losses = [one.loss for one in before if math.isfinite(one.loss)]
    norms = [one.grad_norm for one in before if math.isfinite(one.grad_norm) and one.grad_norm >= 0]
    if len(losses) < _LEVEL_STEPS_MIN:
        return None
    loss = statistics.median(losses)
    norm = statistics.median(norms) if len(norms) >= _LEVEL_STEPS_MIN else None
    return Level(
        loss=loss,
        grad_norm=norm,
        climbs_from=_climbs_from(before, norm),
        back_at=_back_at(after, loss, norm),
        looked_at=len(after),
    )


def _climbs_from(before: Sequence[Step], norm: float | None) -> int | None:
    found = None
    for one in reversed(before):
        # A norm that is not a number is no usual one either.
        if norm is None or 0 <= one.grad_norm <= _CLIMBS * norm:
            break
        found = one.step if one.grad_norm >= 0 or math.isnan(one.grad_norm) else found
    return found


def _back_at(after: Sequence[Step], loss: float, norm: float | None) -> int | None:
    # A loss may have either sign: a quarter of its size above it is the margin.
    highest = loss + (_BACK - 1) * abs(loss)

    def is_back(some: Sequence[Step]) -> bool:
        is_low = norm is None or _median([one.grad_norm for one in some]) <= _BACK * norm
        return is_low and _median([one.loss for one in some]) <= highest

    for at in range(len(after) - _BACK_STEPS + 1):
        # The first of them is the answer, so it is back itself.
        if is_back(after[at : at + 1]) and is_back(after[at : at + _BACK_STEPS]):
            return after[at].step
    return None


def _median(values: Sequence[float]) -> float:
    """Return the median; a NaN counts as the greatest value."""
    return sorted(values, key=lambda one: (math.isnan(one), one))[len(values) // 2]
