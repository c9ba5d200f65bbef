"""The policies: for each a class with the closed form of the rate after the warm-up.

Promises: a policy returns `shares` of the distance from floor to base, 1.0 at most, in Python floats and without state.
Equal schedules give equal bits, for one step or for many. A new policy is a class here, a name in LRPolicy and a row in
docs/learning-rate.md.
"""

from __future__ import annotations

from collections.abc import Callable
from math import cos, pi
from typing import Final, Protocol

from tolariad.core.learning_rate.schedule import LRPolicy, Schedule, Warmup


class Policy(Protocol):
    """The interface of the classes below."""

    def shares(self, schedule: Schedule, steps: range) -> list[float]:
        """Return the share of base_lr - floor that remains at each of `steps`.

        The steps are consecutive and come after the warm-up.
        """


class Constant:
    """base_lr."""

    def shares(self, schedule: Schedule, steps: range) -> list[float]:  # noqa: ARG002 - a Policy's
        """Return 1.0 for every step."""
        return [1.0] * len(steps)


class Cosine:
    """Half a cosine from base_lr to min_lr at the last step; base_lr if the last step is not known."""

    def shares(self, schedule: Schedule, steps: range) -> list[float]:
        """Return (1 + cos(pi p)) / 2. cos(pi) is exactly -1 in floats, so the last rate is exactly min_lr."""
        return _to_the_end(schedule, steps, lambda done, length: [0.5 * (1.0 + cos(pi * (n / length))) for n in done])


class Linear:
    """A straight line from base_lr to min_lr at the last step."""

    def shares(self, schedule: Schedule, steps: range) -> list[float]:
        """Return 1 - p."""
        return _to_the_end(schedule, steps, lambda done, length: [1.0 - n / length for n in done])


class Stairs:
    """base_lr times step_factor after every step_steps; at least min_lr.

    As torch's StepLR, counted from the warm-up's end.
    """

    def shares(self, schedule: Schedule, steps: range) -> list[float]:
        """Return the position of each step's rate between the floor and base_lr."""
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


class WarmupStableDecay:
    """base_lr, then a straight line to min_lr over the last decay_steps of the run."""

    def shares(self, schedule: Schedule, steps: range) -> list[float]:
        """Return 1 until the decay begins, then 1 - q."""
        if schedule.total_steps is None or schedule.decay_steps < 1:
            return [1.0] * len(steps)
        begun = max(schedule.total_steps - schedule.decay_steps, schedule.warmup_steps)
        length = schedule.total_steps - begun
        if length < 1:
            return [1.0] * len(steps)
        before = max(0, min(len(steps), begun + 1 - steps.start))
        return [1.0] * before + [1.0 - min(1.0, (step - begun) / length) for step in steps[before:]]


POLICIES: Final[dict[LRPolicy, Policy]] = {
    LRPolicy.HOST_COSINE: Cosine(),
    LRPolicy.SEED_WARMUP: Constant(),
    # Its rate after the warm-up is state, not computed: see `plateau`.
    LRPolicy.MORPHO_ADAPTIVE: Constant(),
    LRPolicy.CONSTANT: Constant(),
    LRPolicy.LINEAR: Linear(),
    LRPolicy.STEP: Stairs(),
    LRPolicy.WSD: WarmupStableDecay(),
}


def _to_the_end(schedule: Schedule, steps: range, shape: Callable[[range, int], list[float]]) -> list[float]:
    """Return `shape(n, length)` for step n of `length` after the warm-up. Steps after the last one get its value."""
    total, first = schedule.total_steps, schedule.warmup_steps + 1
    if total is None or total <= first:
        return [1.0] * len(steps)
    inside = range(steps.start - first, min(steps.stop, total + 1) - first)
    end = shape(range(total - first, total - first + 1), total - first)
    return shape(inside, total - first) + end * (len(steps) - len(inside))


def warming(schedule: Schedule, step: int) -> float:
    """Return the factor on base_lr at `step` of the warm-up: warmup_factor at step 1, 1.0 one step after its end."""
    low, done = schedule.warmup_factor, (step - 1) / schedule.warmup_steps
    match schedule.warmup:
        case Warmup.LINEAR:
            return low + (1.0 - low) * done
        case Warmup.EXPONENTIAL:
            return float(low ** (1.0 - done))
        case Warmup.COSINE:
            return low + (1.0 - low) * 0.5 * (1.0 - cos(pi * done))
