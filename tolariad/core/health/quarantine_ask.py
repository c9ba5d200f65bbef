"""Why batches were passed over."""

from __future__ import annotations

from typing import Protocol

from tolariad.core.base import Cause
from tolariad.core.health.quarantine_slice import HasQuarantine
from tolariad.core.steps import words as steps
from tolariad.core.steps.slice import HasProgress


class QuarantineAndProgress(HasProgress, HasQuarantine, Protocol):
    """What is in quarantine, and where training stands."""


def cause_of(state: QuarantineAndProgress, report: steps.StepSkippedReport) -> Cause:
    """Why these batches were passed over: the entry's event. None is named where it was taken out meanwhile."""
    if report.reason is not steps.SkipReason.QUARANTINED:
        return Cause(0, 0)
    progress = state.progress
    before = progress.batch if report.epoch == progress.epoch else 0
    for one in state.quarantine.entries:
        held = one.batches
        if held is not None and held.epoch == report.epoch and held.first <= report.batch and before < held.last:
            return Cause(one.since, one.root)
    return Cause(0, 0)
