"""Learning rates as closed-form functions of the step: lr = f(schedule, step), in Python floats.

Promises: no state and no accumulation, so the rate of step n is the same whether the run reached n in one go, resumed
before it, or is only being read about; the last step of a schedule that decays has exactly `min_lr`. One function serves
the trainer, which writes the rates, and everyone who wants to know what they must have been.
It must not know: optimizers, parameter groups' contents, epochs (its unit is the step).
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Sequence
from enum import Enum

from msgspec import Struct


class Decay(Enum):
    """What follows the warm-up."""

    COSINE = "cosine"
    LINEAR = "linear"
    CONSTANT = "constant"


class Warmup(Enum):
    """How the rate rises from `base_lr * warmup_factor` to `base_lr`."""

    LINEAR = "linear"
    EXPONENTIAL = "exponential"
    COSINE = "cosine"


class Schedule(Struct, frozen=True, kw_only=True):
    """The policy of one parameter group. Steps count from 1; `total_steps` is the last one the schedule is drawn for."""

    decay: Decay
    base_lr: float
    min_lr: float
    total_steps: int
    warmup_steps: int = 0
    warmup_factor: float = 0.1
    warmup: Warmup = Warmup.LINEAR


def rate(schedule: Schedule, step: int) -> float:
    """The learning rate of update `step`. Before step 1 and beyond `total_steps` the nearest one holds."""
    step = min(max(step, 1), max(schedule.total_steps, 1))
    if step <= schedule.warmup_steps:
        return _warming(schedule, (step - 1) / schedule.warmup_steps)
    decaying_steps = schedule.total_steps - schedule.warmup_steps - 1
    progress = (step - schedule.warmup_steps - 1) / decaying_steps if decaying_steps > 0 else 0.0
    return _decaying(schedule, progress)


def _warming(schedule: Schedule, progress: float) -> float:
    """The rate `progress` (0 to below 1) of the way through the warm-up."""
    low = schedule.warmup_factor
    match schedule.warmup:
        case Warmup.LINEAR:
            factor = low + (1.0 - low) * progress
        case Warmup.EXPONENTIAL:
            factor = low ** (1.0 - progress)
        case Warmup.COSINE:
            factor = low + (1.0 - low) * 0.5 * (1.0 - math.cos(math.pi * progress))
    return schedule.base_lr * factor


def _decaying(schedule: Schedule, progress: float) -> float:
    """The rate `progress` (0 to 1) of the way from the end of the warm-up to the last step."""
    # A base rate below the floor would make the decay a rise; then there is nothing to decay to.
    floor = min(schedule.min_lr, schedule.base_lr)
    span = schedule.base_lr - floor
    match schedule.decay:
        case Decay.CONSTANT:
            return schedule.base_lr
        case Decay.LINEAR:
            shape = 1.0 - progress
        case Decay.COSINE:
            # cos(pi) is exactly -1 in floats, so progress 1 gives the floor and nothing beside it.
            shape = 0.5 * (1.0 + math.cos(math.pi * progress))
    # floor + (base - floor) may round to the float above base.
    return min(schedule.base_lr, floor + span * shape)


def shortened_warmup(warmup_steps: int, total_steps: int) -> int:
    """A warm-up longer than the run is cut to half of it, so that the base rate is reached at all."""
    return warmup_steps if warmup_steps < total_steps else total_steps // 2


def rates_digest(rates: Sequence[float]) -> int:
    """An unsigned 64-bit digest over the bits of all groups' rates, in the groups' order."""
    packed = struct.pack(f"<{len(rates)}d", *rates)
    return int.from_bytes(hashlib.blake2b(packed, digest_size=8).digest(), "little")
