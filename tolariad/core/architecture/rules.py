"""The rules for a reported change of the model's shape."""

from __future__ import annotations

from typing import Protocol

from tolariad.core.architecture import words as ar
from tolariad.core.architecture.slice import CHANGES_MAX, HasArchitecture
from tolariad.core.decision import Decision
from tolariad.core.engine import At
from tolariad.core.trainer.slice import HasTrainer


class Reads(HasArchitecture, HasTrainer, Protocol):
    """The slices that the rule reads."""


def changed(state: Reads, report: ar.ArchitectureReport, _: At[Reads]) -> Decision:
    """Record a change of the model. If it is not the next one in the journal's ledger, refuse the report."""
    known = len(state.architecture.changes)
    if report.number != known + 1 or known >= CHANGES_MAX:
        why = f"change {report.number} of the model ({report.name}) was reported; the journal holds {known}"
        return Decision((state.trainer.refused(why),))
    return Decision((ar.ArchitectureChanged.of(report),))
