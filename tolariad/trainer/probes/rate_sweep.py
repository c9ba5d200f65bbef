"""The learning-rate range test: train a copy while its rate rises from tiny to far too large, and watch the loss.

Source: Leslie N. Smith, "Cyclical Learning Rates for Training Neural Networks", 2017. Sweep, smoothing and stop are
those of fastai and Lightning. Promise: the same seed and configuration give the same curve, bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from tolariad.core.calc.learning_rate.schedule import LRPolicy
from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.probes.copying import built_copy
from tolariad.trainer.probes.counter import Counter
from tolariad.trainer.probes.messages import Sweep, SweepPoint, SweptGroup
from tolariad.trainer.probes.steps import endless, one_step

if TYPE_CHECKING:
    from tolariad.core.calc.learning_rate.group import Group
    from tolariad.trainer.probes.messages import SweepRates
    from tolariad.trainer.setup import Setup

# The smoothed loss begins as the loss of one batch, and the last point may be part of the explosion.
_LEFT_OUT_FIRST: Final = 10
_LEFT_OUT_LAST: Final = 1


def sweep(trial: SweepRates) -> Sweep:
    """Return the curve. Raises what `built_copy` and the task raise, and SetupRefused if there is no rate to sweep."""
    setup = built_copy(trial).setup
    groups = setup.rates.groups
    swept = _reference(groups, setup.settings.learning_rate.base_lr)
    factors = _released(setup, groups, swept.schedule.base_lr)
    points, stopped = _trained(setup, trial, factors)
    if not points:
        raise SetupRefused(f"the loss is not finite at the first rate, {trial.start:g}")
    steepest, tenth = suggested(points)
    return Sweep(
        points=tuple(points),
        swept=swept.name,
        groups=tuple(
            SweptGroup(group.name, group.schedule.base_lr, factor)
            for group, factor in zip(groups, (one for each in factors for one in each), strict=True)
        ),
        stopped=stopped,
        rng_seed=setup.rng_seed,
        steepest=steepest,
        tenth=tenth,
    )


def rates(start: float, end: float, steps: int) -> list[float]:
    """Return the rates of the steps: each is the same multiple of the one before; the last is `end`."""
    return [start * (end / start) ** (step / (steps - 1)) for step in range(steps)]


def suggested(points: Sequence[SweepPoint]) -> tuple[float | None, float | None]:
    """Return the rate at which the smoothed loss falls fastest, and a tenth of the rate at its minimum.

    The first ten points and the last one are left out, if there are enough. None: the loss never falls.
    """
    inner = points[_LEFT_OUT_FIRST:-_LEFT_OUT_LAST] if len(points) > 2 * _LEFT_OUT_FIRST else points
    losses = np.array([point.smoothed for point in inner])
    lowest = int(losses.argmin())
    if not lowest:
        return None, None
    # After the minimum the loss may jump up and fall again, which is no rate to train with. The rates are equally far
    # apart on a logarithmic axis, so the slope is that over the index.
    slopes = np.gradient(losses[: lowest + 1])
    return inner[int(slopes.argmin())].rate, inner[lowest].rate / 10.0


def _reference(groups: Sequence[Group], base_lr: float) -> Group:
    """Return the group whose rate is swept: the first with the configured rate, else the first that trains."""
    trained = [group for group in groups if _trains(group)]
    if not trained:
        raise SetupRefused("no parameter group has a rate above 0, so there is nothing to sweep")
    return next((group for group in trained if group.schedule.base_lr == base_lr), trained[0])


def _trains(group: Group) -> bool:
    return group.policy is not LRPolicy.FROZEN and group.schedule.base_lr > 0.0


def _released(setup: Setup, groups: Sequence[Group], base_lr: float) -> list[list[float]]:
    """Take the optimizers from the rate controller. Return the factor of each of their groups to the swept rate."""
    left, factors = list(groups), []
    for name, optimizer in setup.owners:
        setup.rates.unregister_optimizer(name)
        own, left = left[: len(optimizer.param_groups)], left[len(optimizer.param_groups) :]
        factors.append([group.schedule.base_lr / base_lr if _trains(group) else 0.0 for group in own])
        for group, held in zip(own, optimizer.param_groups, strict=True):
            if not _trains(group):
                # At a rate of 0 too the moments of some optimizers change, and weight decay of others acts.
                for parameter in held["params"]:
                    parameter.requires_grad_(requires_grad=False)
    return factors


def _trained(setup: Setup, trial: SweepRates, factors: list[list[float]]) -> tuple[list[SweepPoint], str]:
    """Make the steps. Return the points, and why the sweep stopped early, if it did."""
    points: list[SweepPoint] = []
    smoothed, best = 0.0, math.inf
    counter, batches = Counter("step", trial.steps), endless(setup)
    try:
        for step, rate in enumerate(rates(trial.start, trial.end, trial.steps), 1):
            for (_, optimizer), own in zip(setup.owners, factors, strict=True):
                for group, factor in zip(optimizer.param_groups, own, strict=True):
                    group["lr"] = rate * factor
            loss = one_step(setup, next(batches), step).loss
            counter.show(step)
            if not math.isfinite(loss):
                return points, "not_finite"
            smoothed = trial.smoothing * smoothed + (1.0 - trial.smoothing) * loss
            # Without the division it would begin near 0.
            unbiased = smoothed / (1.0 - trial.smoothing**step)
            points.append(SweepPoint(rate, loss, unbiased))
            best = min(best, unbiased)
            if trial.stop_factor and step > 1 and unbiased > best + (trial.stop_factor - 1.0) * abs(best):
                return points, "diverged"
    finally:
        counter.end()
    return points, ""
