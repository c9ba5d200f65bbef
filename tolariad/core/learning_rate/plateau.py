"""MORPHO_ADAPTIVE's memory: the rate goes down where a metric has stopped to fall.

Promises: bit for bit what torch's ReduceLROnPlateau does with mode `min` and a relative threshold, NaN included (it is
never better). It must not know: which metric, or when an epoch ends.
"""

from __future__ import annotations

import math
from typing import Final

from msgspec import Struct

from tolariad.core.learning_rate.schedule import PlateauRule

# A reduction smaller than this is none, in torch's words `eps`.
_LEAST: Final = 1e-8


class Plateau(Struct, frozen=True):
    """The rate in force; `best` metric so far, `bad` epochs since, epochs left of `cooling` down."""

    rate: float
    best: float = math.inf
    bad: int = 0
    cooling: int = 0


def observed(plateau: Plateau, rule: PlateauRule, min_lr: float, metric: float) -> Plateau:
    """After one more epoch with this metric."""
    better = metric < plateau.best * (1.0 - rule.threshold)
    best = metric if better else plateau.best
    bad = 0 if better else plateau.bad + 1
    cooling = plateau.cooling
    if cooling > 0:
        cooling, bad = cooling - 1, 0
    if bad <= rule.patience:
        return Plateau(plateau.rate, best, bad, cooling)
    lower = max(plateau.rate * rule.factor, min_lr)
    rate = lower if plateau.rate - lower > _LEAST else plateau.rate
    return Plateau(rate, best, 0, rule.cooldown)
