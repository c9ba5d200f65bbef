"""How much may be pruned in an epoch: the budget of one cycle, the caps of all cycles, and the limits of safety.

Promises: pure functions of the settings. Shares are of the channels that the model had before any pruning, so a cycle's
share does not shrink with the model. A budget never leads over a cap, whatever was pruned before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tolariad.core.settings.model import Settings
from tolariad.core.settings.pruning import PruneSafety, ShareFrom


def budget_at(settings: Settings, epoch: int) -> float:
    """Return the share that one cycle after `epoch` may prune, without regard to caps: 0 before the transition."""
    if epoch <= settings.pruning_phase_transition_epoch:
        return 0.0
    return _share_at(settings.prune.budgets, epoch)


def cap_at(settings: Settings, epoch: int) -> float:
    """Return the share that all cycles up to `epoch` may have pruned together."""
    if epoch <= settings.pruning_phase_transition_epoch:
        return 0.0
    return min(_share_at(settings.prune.caps, epoch), settings.prune.absolute_cap)


def units_allowed(settings: Settings, epoch: int, total: int, pruned: int) -> int:
    """Return how many more of `total` channels a cycle after `epoch` may prune, if `pruned` are pruned already."""
    return channels_allowed(budget_at(settings, epoch), cap_at(settings, epoch), total, pruned)


def channels_allowed(share: float, cap: float, total: int, pruned: int) -> int:
    """Return how many more of `total` channels a cycle with these shares may prune, if `pruned` are pruned already."""
    return max(0, min(_whole(share, total), _whole(cap, total) - pruned))


def accuracy_margin(safety: PruneSafety, spread: float) -> float:
    """Return the drop of accuracy that is allowed, absolute. `spread`: that of repeated validations of one model."""
    return max(safety.accuracy_drop, safety.spread_factor * spread)


class ProgressivePruningSchedule:
    """The schedule and the limits of a run that sets none of its own (source document 004)."""

    _SETTINGS: Final = Settings()

    def get_pruning_budget(self, epoch: int) -> float:
        """Return the share that one cycle may prune: 0 to epoch 30, then 0.01, 0.03 from 50, 0.05 from 100."""
        return budget_at(self._SETTINGS, epoch)

    def get_safety_thresholds(self, epoch: int) -> Mapping[str, float]:  # noqa: ARG002 - the source's signature
        """Return the limits of the safety window by the sources' names. They are the same for every epoch."""
        safety = self._SETTINGS.prune.safety
        return {
            "accuracy_drop_threshold": safety.accuracy_drop,
            "gradient_norm_threshold": safety.gradient_norm,
            "memory_usage_threshold": safety.memory,
            "training_speed_threshold": safety.speed,
        }


def _share_at(entries: tuple[ShareFrom, ...], epoch: int) -> float:
    """Return the share of the last entry that has begun; 0 if none has."""
    return next((entry.share for entry in reversed(entries) if entry.epoch <= epoch), 0.0)


def _whole(share: float, total: int) -> int:
    """Return the whole channels in a share. A product that rounding left just below a whole number counts as it."""
    return int(share * total + 1e-9 * max(1.0, share * total))
