"""The phase of pruning, as a function of epoch, breaker and order.

Promises: equal arguments give the same phase, so a restart or a rollback needs no stored phase to find it. Without an
order and with a closed breaker the phase only moves forward: validation only, active, disabled. Epochs count from 1.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from tolariad.core.calc.health.breaker import BreakerState
from tolariad.core.calc.pruning.plan import PrunePlan, plan_of
from tolariad.core.calc.settings.model import Settings


class PruningPhase(IntEnum):
    """Whether a run only analyses what it could prune, prunes, or does neither. The numbers are Leyline's."""

    VALIDATION_ONLY = 1
    ACTIVE_PRUNING = 2
    DISABLED = 3


# From the phase that does most to the one that does nothing.
_LESS_AND_LESS: Final = (PruningPhase.ACTIVE_PRUNING, PruningPhase.VALIDATION_ONLY, PruningPhase.DISABLED)


def phase_at(
    plan: PrunePlan,
    epoch: int,
    breaker: BreakerState = BreakerState.CLOSED,
    override: PruningPhase | None = None,
) -> PruningPhase:
    """Return the phase after `epoch` epochs.

    An open breaker disables pruning; a half-open one lets a cycle through as its probe. `override` is an operator's
    order: it can hold pruning back, but never prune in an epoch in which the schedule does not.
    """
    if breaker is BreakerState.OPEN or not plan.morphogenesis:
        return PruningPhase.DISABLED
    if epoch <= plan.transition_epoch:
        scheduled = PruningPhase.VALIDATION_ONLY
    elif epoch <= plan.last_epoch:
        scheduled = PruningPhase.ACTIVE_PRUNING
    else:
        scheduled = PruningPhase.DISABLED
    return scheduled if override is None else max(scheduled, override, key=_LESS_AND_LESS.index)


def is_cycle_due(plan: PrunePlan, epoch: int, phase: PruningPhase) -> bool:
    """Return whether a cycle begins after this epoch: every one if it only analyses, else one in an interval."""
    return is_due_since(plan, epoch, epoch - 1, phase)


def is_due_since(plan: PrunePlan, epoch: int, last: int, phase: PruningPhase) -> bool:
    """Return whether a cycle begins at a checkpoint after `epoch` epochs, if the last one began after `last`.

    Not every epoch ends with a checkpoint: a cycle that was due in between begins at the next one.
    """
    if phase is PruningPhase.VALIDATION_ONLY:
        return epoch > max(0, last)
    return phase is PruningPhase.ACTIVE_PRUNING and epoch // plan.interval > max(0, last) // plan.interval


class StructuredPruningPhaseManager:
    """The phase of a run at its last epoch (source document 004).

    `breaker` and `override` are attributes: the phase follows a change of them at once.
    """

    def __init__(
        self,
        config: Settings,
        *,
        breaker: BreakerState = BreakerState.CLOSED,
        override: PruningPhase | None = None,
    ) -> None:
        self.breaker = breaker
        self.override = override
        self._plan = plan_of(config)
        self._epoch = 0

    @property
    def current_phase(self) -> PruningPhase:
        """The phase at the epoch that was asked about last."""
        return phase_at(self._plan, self._epoch, self.breaker, self.override)

    def get_current_phase(self, epoch: int) -> PruningPhase:
        """Take `epoch` as the current one and return its phase."""
        self._epoch = epoch
        return self.current_phase

    def is_pruning_epoch(self, epoch: int) -> bool:
        """Return whether a cycle of analysis, or of pruning, begins after `epoch`."""
        return is_cycle_due(self._plan, epoch, phase_at(self._plan, epoch, self.breaker, self.override))

    def reset_to_checkpoint(self, epoch: int) -> None:
        """Go back to the epoch of a checkpoint, as a rollback does."""
        self._epoch = epoch
