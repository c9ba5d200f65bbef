"""Compute a schedule's rate at a step, a column of rates, and the digest over a step's rates.

Promises: a policy is a closed form in Python floats, without state. A step's rate has the same bits if it is computed
alone or as one of a column. The trainer, which writes the rates, and the kernel, which checks them, use the same
function. A new policy is a function here, a name in LRPolicy and a row in docs/learning-rate.md.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from hashlib import blake2b
from math import cos, pi, sqrt
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from tolariad.core.calc.learning_rate.residues import least_at
from tolariad.core.calc.learning_rate.schedule import LRPolicy, PlateauRule, Schedule, Warmup
from tolariad.core.calc.learning_rate.tabulated import factors_of


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


def _polynomial(schedule: Schedule, steps: range) -> list[float]:
    """A power of the straight line from base_lr to min_lr at the last step, as torch's PolynomialLR."""
    power = schedule.rule.power
    return _to_the_end(schedule, steps, lambda done, length: [(1.0 - n / length) ** power for n in done])


def _cosine_restarts(schedule: Schedule, steps: range) -> list[float]:
    """`num_cycles` halves of a cosine, each from base_lr; the last one ends with min_lr at the last step."""
    cycles = schedule.rule.num_cycles

    def shape(done: range, length: int) -> list[float]:
        # In integers: a restart that rounding moves by one step would have the lowest rate and not the highest.
        return [0.5 * (1.0 + cos(pi * (1.0 if n >= length else cycles * n % length / length))) for n in done]

    return _to_the_end(schedule, steps, shape)


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
    LRPolicy.WSD: _stable_then_decay,
    LRPolicy.POLYNOMIAL: _polynomial,
    LRPolicy.COSINE_RESTARTS: _cosine_restarts,
}


def _stairs(schedule: Schedule, steps: range) -> list[float]:
    """base_lr times step_factor after every step_steps; at least min_lr.

    As torch's StepLR, counted from the warm-up's end.
    """
    base, floor, factor = schedule.base_lr, schedule.floor, schedule.step_factor
    steps = range(steps.start - schedule.warmup_steps - 1, steps.stop - schedule.warmup_steps - 1)
    rates: list[float] = []
    while len(rates) < len(steps):
        stair = steps[len(rates)] // schedule.step_steps
        left = min(steps.stop, (stair + 1) * schedule.step_steps) - steps[len(rates)]
        rates += [max(floor, base * factor**stair)] * left
    return rates


def _inverse_sqrt(schedule: Schedule, steps: range) -> list[float]:
    """base_lr divided by the root of the steps since the warm-up, in units of the timescale; at least min_lr."""
    base, floor, scale = schedule.base_lr, schedule.floor, schedule.inverse_sqrt_scale
    shift = scale - schedule.warmup_steps - 1
    return [max(floor, base * (1.0 / sqrt((step + shift) / scale))) for step in steps]


def _onecycle(schedule: Schedule, steps: range) -> list[float]:
    """Half a cosine up to base_lr, and half a cosine down to far below its beginning: torch's OneCycleLR, to the bit.

    The parameters and formulas are torch's, with base_lr as its max_lr. The momentum does not change.
    """
    top, total = schedule.base_lr, schedule.total_steps
    if total is None:
        return [top] * len(steps)
    low = top / schedule.rule.div_factor
    least, risen, last = low / schedule.rule.final_div_factor, schedule.rule.pct_start * total - 1.0, total - 1

    def at(done: int) -> float:
        start, end, begun, ended = (low, top, 0.0, risen) if done <= risen else (top, least, risen, last)
        share = (done - begun) / (ended - begun) if ended > begun else 1.0
        return min(top, end + (start - end) / 2.0 * (cos(pi * share) + 1.0))

    return [at(min(step - 1, last)) for step in steps]


def _function(schedule: Schedule, steps: range) -> list[float]:
    """base_lr times the value of the user's function, from its table. Steps after the last one get its value.

    A table of rates, and not of factors, is used as it is.
    """
    table = schedule.function
    factors = factors_of(table)
    if table is None or not factors:
        return [0.0] * len(steps)
    base, last = 1.0 if table.absolute else schedule.base_lr, len(factors) - 1
    return [base * factors[min(step - 1, last)] for step in steps]


# Each returns the rates of some consecutive steps after the warm-up. These are not between base_lr and a floor in the
# same way for all groups, so groups share nothing of them.
OWN_RATES: Final[dict[LRPolicy, Callable[[Schedule, range], list[float]]]] = {
    LRPolicy.STEP: _stairs,
    LRPolicy.INVERSE_SQRT: _inverse_sqrt,
    LRPolicy.ONECYCLE: _onecycle,
    LRPolicy.FUNCTION: _function,
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
    steps = range(first - schedule.start, first - schedule.start + count)
    own = OWN_RATES.get(schedule.policy)
    if own is not None:
        cut = _warm_of(schedule, steps)
        return [base * _warming(schedule, step) for step in steps[:cut]] + own(schedule, steps[cut:])
    shape = _shape(schedule, steps, shapes)
    span = base - floor
    warm = [base * factor for factor in shape.factors]
    # Rounding may put the sum one float above base. The largest share has the largest sum, so one comparison is enough.
    most = floor + span * shape.most
    if shape.level:
        return warm + [min(base, most)] * len(shape.shares)
    if most <= base:
        return warm + [floor + span * share for share in shape.shares]
    return warm + [min(base, floor + span * share) for share in shape.shares]


def _warm_of(schedule: Schedule, steps: range) -> int:
    """Return how many of the steps belong to the warm-up."""
    return max(0, min(len(steps), schedule.warmup_steps + 1 - steps.start))


def _shape(schedule: Schedule, steps: range, shapes: Shapes) -> Shape:
    key = replace(schedule, **_WITHOUT_RATES)
    known = shapes.get(key)
    if known is None:
        cut = _warm_of(schedule, steps)
        factors = [_warming(schedule, step) for step in steps[:cut]]
        shares = POLICIES[schedule.policy](schedule, steps[cut:])
        most = max(shares, default=0.0)
        known = shapes[key] = Shape(factors, shares, most, level=shares.count(most) == len(shares))
    return known


def top_step(schedule: Schedule, step: int) -> int:
    """Return the step, from `step` on, at which the rate is highest; `step` itself if the curve only falls."""
    done, total = step - schedule.start - 1, schedule.total_steps
    top = schedule.warmup_steps
    if schedule.policy is LRPolicy.ONECYCLE and total is not None:
        risen = int(max(0.0, schedule.rule.pct_start * total - 1.0))
        top = max((risen, risen + 1), key=lambda n: rate(schedule, schedule.start + 1 + n))
    elif schedule.policy is LRPolicy.COSINE_RESTARTS and total is not None and done > top:
        length = max(1, total - 1 - top)
        left = range(done - top, length)
        top += least_at(schedule.rule.num_cycles, length, left) if left else 0
    elif schedule.policy is LRPolicy.FUNCTION:
        factors = factors_of(schedule.function)
        top = max(range(max(0, done), len(factors)), key=factors.__getitem__, default=done)
    # A short decay may begin at the end of the warm-up: then the step before that, or a level warm-up, is higher.
    ends = (max(step, schedule.start + end) for end in (schedule.warmup_steps, 1 + top))
    return max((step, *ends), key=lambda one: rate(schedule, one))


def rates_digest(rates: Sequence[float]) -> int:
    """Return an unsigned 64-bit digest over the bits of all groups' rates, in the groups' order."""
    packed = struct.pack(f"<{len(rates)}d", *rates)
    return int.from_bytes(blake2b(packed, digest_size=8).digest(), "little")
