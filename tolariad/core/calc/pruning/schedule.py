"""How much may be pruned in an epoch: the budget of one cycle, the caps of all cycles, and the limits of safety.

Promises: pure functions of the plan. Shares are of the parameters that the model had before any pruning, so a cycle's
share does not shrink with the model. A budget never leads over a cap, whatever was pruned before.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from tolariad.core.calc.pruning.plan import PlannedShare, PrunePlan, plan_of
from tolariad.core.calc.settings.model import Settings


def budget_at(plan: PrunePlan, epoch: int) -> float:
    """Return the share that one cycle after `epoch` may prune, without regard to caps: 0 before the transition."""
    if epoch <= plan.transition_epoch:
        return 0.0
    return _share_at(plan.budgets, epoch)


def cap_at(plan: PrunePlan, epoch: int) -> float:
    """Return the share that all cycles up to `epoch` may have pruned together."""
    if epoch <= plan.transition_epoch:
        return 0.0
    return min(_share_at(plan.caps, epoch), plan.absolute_cap)


def parameters_allowed(share: float, cap: float, total: int, pruned: int) -> int:
    """Return how many more of `total` parameters a cycle may prune, if `pruned` are pruned already."""
    return max(0, min(_whole(share, total), _whole(cap, total) - pruned))


class ProgressivePruningSchedule:
    """The schedule and the limits of a run that sets none of its own (source document 004)."""

    _SETTINGS: Final = Settings()

    def get_pruning_budget(self, epoch: int) -> float:
        """Return the share that one cycle may prune: 0 to epoch 30, then 0.01, 0.03 from 50, 0.05 from 100."""
        return budget_at(plan_of(self._SETTINGS), epoch)

    def get_safety_thresholds(self, epoch: int) -> Mapping[str, float]:  # noqa: ARG002 - the source's signature
        """Return the limits of the safety window by the sources' names. They are the same for every epoch."""
        safety = self._SETTINGS.prune.safety
        return {
            "accuracy_drop_threshold": safety.accuracy_drop,
            "gradient_norm_threshold": safety.gradient_norm,
            "memory_usage_threshold": safety.memory,
            "training_speed_threshold": safety.speed,
        }


def _share_at(entries: tuple[PlannedShare, ...], epoch: int) -> float:
    """Return the share of the last entry that has begun; 0 if none has."""
    return next((entry.share for entry in reversed(entries) if entry.epoch <= epoch), 0.0)


def _whole(share: float, total: int) -> int:
    """Return the whole parameters in a share, exactly for the decimal number that the configuration says."""
    from fractions import Fraction

    return math.floor(Fraction(repr(share)) * total)
