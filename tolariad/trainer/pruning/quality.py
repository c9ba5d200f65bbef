"""How good a model is on held-out data, in slices: the accuracy, or its substitute, and its spread.

Promises: pure functions of what the task's `evaluate` returned. Two qualities by the same `before` can be compared.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from tolariad.core.calc.pruning.verdict import ACCURACY, accuracy_by_loss, loss_scale

SLICES: Final = 5


class Level(NamedTuple):
    """The mean of the metric over one slice. `weight`: the count behind it, such as that of pixels.

    `samples`: how many it has; 0: they are none of the validation.
    """

    mean: float
    weight: int
    samples: int


# One for each slice.
Levels = Sequence[Level]


class Quality(NamedTuple):
    """How good a model is.

    `accuracy` is its accuracy or, for a task without one, 1 - the relative rise of its loss. `spread` is the standard
    error of that. `samples`: how many were evaluated.
    """

    accuracy: float
    spread: float
    samples: int


def metric_of(means: Mapping[str, float]) -> str:
    """Return the metric to compare models by; "" if there is none."""
    return next((name for name in (ACCURACY, "loss") if name in means), "")


def quality_of(metric: str, levels: Levels, before: Levels) -> Quality:
    """Return the quality of a model with these levels.

    `before` holds the levels of the model with which it is compared.
    """
    mean = mean_of(levels)
    spread = statistics.stdev([one.mean for one in levels]) / math.sqrt(len(levels)) if len(levels) > 1 else 0.0
    samples = sum(one.samples for one in levels)
    if metric == ACCURACY:
        return Quality(mean, spread, samples)
    was = mean_of(before)
    return Quality(accuracy_by_loss(mean, was), spread / loss_scale(was), samples)


def mean_of(levels: Levels) -> float:
    """Return the mean over all samples."""
    return sum(one.mean * one.weight for one in levels) / max(1, sum(one.weight for one in levels))
