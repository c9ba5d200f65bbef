"""A schedule's rate at a step, a column of them, and the digest over a step's rates.

Promises: a step's rate has the same bits whether it is asked for alone or as one of a column. One function serves the
trainer, which writes the rates, the kernel, which checks them, and everyone who asks later.
It must not know: orders, plateaus.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

from tolariad.core.learning_rate.policies import POLICIES, warming
from tolariad.core.learning_rate.schedule import LRPolicy, Schedule


class Shape(NamedTuple):
    """Factors of the warm-up and shares behind it; the largest of those, and whether all are it."""

    factors: list[float]
    shares: list[float]
    most: float
    level: bool


# By everything a schedule has but its rates: groups mostly differ in those.
Shapes = dict[Schedule, Shape]


def rate(schedule: Schedule, step: int) -> float:
    """The learning rate of update `step`. Before the first one and beyond the last the nearest one holds."""
    return column(schedule, step, 1, {})[0]


def column(schedule: Schedule, first: int, count: int, shapes: Shapes) -> list[float]:
    """The rates of `count` steps from `first` on. `shapes`: what other columns of the same steps computed already."""
    if schedule.policy is LRPolicy.FROZEN:
        return [0.0] * count
    early = max(0, min(count, schedule.start + 1 - first))
    if early:
        return [rate(schedule, schedule.start + 1)] * early + column(schedule, first + early, count - early, {})
    base, floor = schedule.base_lr, schedule.floor
    shape = _shape(schedule, range(first - schedule.start, first - schedule.start + count), shapes)
    span = base - floor
    warm = [base * factor for factor in shape.factors]
    # Rounding may put the sum on the float above base; the largest share's is the largest sum.
    most = floor + span * shape.most
    if shape.level:
        return warm + [min(base, most)] * len(shape.shares)
    if most <= base:
        return warm + [floor + span * share for share in shape.shares]
    return warm + [min(base, floor + span * share) for share in shape.shares]


def _shape(schedule: Schedule, steps: range, shapes: Shapes) -> Shape:
    # Stairs are cut by their own floor, so only equal schedules share them.
    key = schedule if schedule.policy is LRPolicy.STEP else _without_rates(schedule)
    known = shapes.get(key)
    if known is None:
        cut = max(0, min(len(steps), schedule.warmup_steps + 1 - steps.start))
        factors = [warming(schedule, step) for step in steps[:cut]]
        shares = POLICIES[schedule.policy].shares(schedule, steps[cut:])
        most = max(shares, default=0.0)
        known = shapes[key] = Shape(factors, shares, most, level=shares.count(most) == len(shares))
    return known


def _without_rates(schedule: Schedule) -> Schedule:
    return Schedule(
        policy=schedule.policy,
        base_lr=1.0,
        start=schedule.start,
        total_steps=schedule.total_steps,
        warmup_steps=schedule.warmup_steps,
        warmup_factor=schedule.warmup_factor,
        warmup=schedule.warmup,
        decay_steps=schedule.decay_steps,
    )


def rates_digest(rates: Sequence[float]) -> int:
    """An unsigned 64-bit digest over the bits of all groups' rates, in the groups' order."""
    packed = struct.pack(f"<{len(rates)}d", *rates)
    return int.from_bytes(blake2b(packed, digest_size=8).digest(), "little")
