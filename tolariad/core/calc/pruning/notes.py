"""Sentences before a run about requests for pruning that it cannot fulfil.

Promises: pure functions of settings. A run that does not enable pruning has no note.
"""

from __future__ import annotations

from collections.abc import Iterator

from tolariad.core.calc.pruning.plan import PrunePlan, plan_of
from tolariad.core.calc.settings.model import Settings
from tolariad.core.calc.text.phrases import counted


def prune_notes(settings: Settings) -> Iterator[str]:
    """Yield a sentence for each reason why the run will mask nothing, or will remove no channel."""
    if not settings.prune.enabled:
        return
    if not settings.enable_morphogenetic:
        yield "prune.enabled has no effect: enable_morphogenetic is false, so nothing may change the model"
        return
    plan = plan_of(settings)
    first = first_masks(plan)
    end = min(settings.epochs, settings.stop.epochs or settings.epochs)
    if first >= end or first > plan.last_epoch:
        late = f"this run has {counted(end, 'epoch')}" if first >= end else f"prune.last_epoch is {plan.last_epoch}"
        yield (
            f"no masks are due in this run: the first cycle that may mask is due after epoch {first} "
            f"(pruning_phase_transition_epoch: {plan.transition_epoch}, pruning_checkpoint_interval: {plan.interval}), "
            f"and {late}"
        )
    if settings.compile and plan.compact_every:
        yield "prune.compact_every has no effect with compile: true: masked channels stay masked and are not removed"


def first_masks(plan: PrunePlan) -> int:
    """Return the epoch after which the first cycle that may mask is due. The plan's last epoch is not considered."""
    return (plan.transition_epoch // plan.interval + 1) * plan.interval
