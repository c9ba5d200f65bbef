"""The state of MORPHO_ADAPTIVE: the rate is lowered after a metric has stopped improving.

Promises: the same bits as torch's ReduceLROnPlateau with mode `min` and a relative threshold, including NaN (it is
never better).
"""

from __future__ import annotations

import math
from typing import Final

from msgspec import Struct

from tolariad.core.learning_rate.schedule import PlateauRule

# A smaller reduction is not made; torch calls it `eps`.
_LEAST: Final = 1e-8


class Plateau(Struct, frozen=True):
    """The rate in force, the `best` metric so far, the `bad` epochs since, and the epochs of cooldown that remain."""

    rate: float
    best: float = math.inf
    bad: int = 0
    cooling: int = 0


def observed(plateau: Plateau, rule: PlateauRule, min_lr: float, metric: float) -> Plateau:
    """Return the plateau after one more epoch with this metric."""
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
