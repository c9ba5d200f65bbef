"""Compute a schedule's rate at a step, a column of them, and the digest over a step's rates.

Promises: a step's rate has the same bits if it is computed alone or as one of a column. The trainer, which writes the
rates, and the kernel, which checks them, use the same function.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

from tolariad.core.learning_rate.policies import POLICIES, warming
from tolariad.core.learning_rate.schedule import LRPolicy, Schedule


class Shape(NamedTuple):
    """The factors of the warm-up and the shares after it; the largest share, and whether all shares are equal to it."""

    factors: list[float]
    shares: list[float]
    most: float
    level: bool


# The key is the schedule without its rates: in most models the groups differ only in those.
Shapes = dict[Schedule, Shape]


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
    """Return an unsigned 64-bit digest over the bits of all groups' rates, in the groups' order."""
    packed = struct.pack(f"<{len(rates)}d", *rates)
    return int.from_bytes(blake2b(packed, digest_size=8).digest(), "little")
