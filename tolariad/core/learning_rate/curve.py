"""Compute a schedule's rate at a step, a column of rates, and the digest over a step's rates.

Promises: a policy is a closed form in Python floats, without state. A step's rate has the same bits if it is computed
alone or as one of a column. The trainer, which writes the rates, and the kernel, which checks them, use the same
function. A new policy is a function here, a name in LRPolicy and a row in docs/learning-rate.md.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from hashlib import blake2b
from math import cos, pi
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from tolariad.core.learning_rate.schedule import LRPolicy, PlateauRule, Schedule, Warmup


def _constant(_: Schedule, steps: range) -> list[float]:
    """base_lr."""
    return [1.0] * len(steps)


def _cosine(schedule: Schedule, steps: range) -> list[float]:
    """Half a cosine from base_lr to min_lr at the last step; base_lr if the last step is not known.

    cos(pi) is exactly -1 in floats, so the last rate is exactly min_lr.
    """
    return _to_the_end(schedule, steps, lambda done, length: [0.5 * (1.0 + cos(pi * (n / length))) for n in done])


def _linear(schedule: Schedule, steps: range) -> list[float]:
    """A straight line from base_lr to min_lr at the last step."""
    return _to_the_end(schedule, steps, lambda done, length: [1.0 - n / length for n in done])


def _stairs(schedule: Schedule, steps: range) -> list[float]:
    """base_lr times step_factor after every step_steps; at least min_lr.

    As torch's StepLR, counted from the warm-up's end.
    """
    base, floor = schedule.base_lr, schedule.floor
    if base <= floor:
        return [1.0] * len(steps)
    steps = range(steps.start - schedule.warmup_steps - 1, steps.stop - schedule.warmup_steps - 1)
    shares: list[float] = []
    while len(shares) < len(steps):
        stair = steps[len(shares)] // schedule.step_steps
        left = min(steps.stop, (stair + 1) * schedule.step_steps) - steps[len(shares)]
        shares += [max(0.0, (base * schedule.step_factor**stair - floor) / (base - floor))] * left
    return shares


def _stable_then_decay(schedule: Schedule, steps: range) -> list[float]:
    """base_lr, then a straight line to min_lr over the last decay_steps of the run."""
    if schedule.total_steps is None or schedule.decay_steps < 1:
        return [1.0] * len(steps)
    begun = max(schedule.total_steps - schedule.decay_steps, schedule.warmup_steps)
    length = schedule.total_steps - begun
    if length < 1:
        return [1.0] * len(steps)
    before = max(0, min(len(steps), begun + 1 - steps.start))
    return [1.0] * before + [1.0 - min(1.0, (step - begun) / length) for step in steps[before:]]


# Each returns the share of base_lr - floor that remains at each of some consecutive steps after the warm-up.
POLICIES: Final[dict[LRPolicy, Callable[[Schedule, range], list[float]]]] = {
    LRPolicy.HOST_COSINE: _cosine,
    LRPolicy.SEED_WARMUP: _constant,
    # Its rate after the warm-up is state, not computed: see `group.observed`.
    LRPolicy.MORPHO_ADAPTIVE: _constant,
    LRPolicy.CONSTANT: _constant,
    LRPolicy.LINEAR: _linear,
    LRPolicy.STEP: _stairs,
    LRPolicy.WSD: _stable_then_decay,
}


def _to_the_end(schedule: Schedule, steps: range, shape: Callable[[range, int], list[float]]) -> list[float]:
    """Return `shape(n, length)` for step n of `length` after the warm-up. Steps after the last one get its value."""
    total, first = schedule.total_steps, schedule.warmup_steps + 1
    if total is None or total <= first:
        return [1.0] * len(steps)
    inside = range(steps.start - first, min(steps.stop, total + 1) - first)
    end = shape(range(total - first, total - first + 1), total - first)
    return shape(inside, total - first) + end * (len(steps) - len(inside))


def _warming(schedule: Schedule, step: int) -> float:
    """Return the factor on base_lr at `step` of the warm-up: warmup_factor at step 1, 1.0 one step after its end."""
    low, done = schedule.warmup_factor, (step - 1) / schedule.warmup_steps
    match schedule.warmup:
        case Warmup.LINEAR:
            return low + (1.0 - low) * done
        case Warmup.EXPONENTIAL:
            return float(low ** (1.0 - done))
        case Warmup.COSINE:
            return low + (1.0 - low) * 0.5 * (1.0 - cos(pi * done))


class Shape(NamedTuple):
    """The factors of the warm-up and the shares after it; the largest share, and whether all shares are equal to it."""

    factors: list[float]
    shares: list[float]
    most: float
    level: bool


# The key is the schedule without its rates: in most models the groups differ only in those.
Shapes = dict[Schedule, Shape]
_WITHOUT_RATES: Final[dict[str, Any]] = {
    "base_lr": 1.0,
    "min_lr": 0.0,
    "max_lr": None,
    "step_steps": 1,
    "step_factor": 0.1,
    "plateau": PlateauRule(),
}


def rate(schedule: Schedule, step: int) -> float:
    """Return the learning rate of update `step`. Before the first step and after the last, the nearest one counts."""
    return column(schedule, step, 1, {})[0]


def column(schedule: Schedule, first: int, count: int, shapes: Shapes) -> list[float]:
    """Return the rates of `count` steps from `first` on. `shapes`: a cache for other columns of the same steps."""
    if schedule.policy is LRPolicy.FROZEN:
        return [0.0] * count
    early = max(0, min(count, schedule.start + 1 - first))
    if early:
        return [rate(schedule, schedule.start + 1)] * early + column(schedule, first + early, count - early, {})
    base, floor = schedule.base_lr, schedule.floor
    shape = _shape(schedule, range(first - schedule.start, first - schedule.start + count), shapes)
    span = base - floor
    warm = [base * factor for factor in shape.factors]
    # Rounding may put the sum one float above base. The largest share has the largest sum, so one comparison is enough.
    most = floor + span * shape.most
    if shape.level:
        return warm + [min(base, most)] * len(shape.shares)
    if most <= base:
        return warm + [floor + span * share for share in shape.shares]
    return warm + [min(base, floor + span * share) for share in shape.shares]


def _shape(schedule: Schedule, steps: range, shapes: Shapes) -> Shape:
    # The steps' shares depend on the floor, so only equal schedules share them.
    key = schedule if schedule.policy is LRPolicy.STEP else replace(schedule, **_WITHOUT_RATES)
    known = shapes.get(key)
    if known is None:
        cut = max(0, min(len(steps), schedule.warmup_steps + 1 - steps.start))
        factors = [_warming(schedule, step) for step in steps[:cut]]
        shares = POLICIES[schedule.policy](schedule, steps[cut:])
        most = max(shares, default=0.0)
        known = shapes[key] = Shape(factors, shares, most, level=shares.count(most) == len(shares))
    return known


def rates_digest(rates: Sequence[float]) -> int:
    """Return an unsigned 64-bit digest over the bits of all groups' rates, in the groups' order."""
    packed = struct.pack(f"<{len(rates)}d", *rates)
    return int.from_bytes(blake2b(packed, digest_size=8).digest(), "little")
