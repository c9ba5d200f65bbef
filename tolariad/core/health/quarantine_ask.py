"""Why batches were skipped."""

from __future__ import annotations

from typing import Protocol

from tolariad.core.base import Cause
from tolariad.core.health.quarantine_slice import HasQuarantine
from tolariad.core.steps import words as steps
from tolariad.core.steps.slice import HasProgress


class QuarantineAndProgress(HasProgress, HasQuarantine, Protocol):
    """The slices with the quarantine and the place of training."""


def cause_of(state: QuarantineAndProgress, report: steps.StepSkippedReport) -> Cause:
    """Return the event of the quarantine entry for which these batches were skipped; 0 if it was removed meanwhile."""
    if report.reason is not steps.SkipReason.QUARANTINED:
        return Cause(0, 0)
    progress = state.progress
    before = progress.batch if report.epoch == progress.epoch else 0
    for one in state.quarantine.entries:
        held = one.batches
        if held is not None and held.epoch == report.epoch and held.first <= report.batch and before < held.last:
            return Cause(one.since, one.root)
    return Cause(0, 0)
