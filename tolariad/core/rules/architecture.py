"""The rules for a reported change of the model's shape."""

from __future__ import annotations

from typing import Protocol

from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.core.decision import Decision
from tolariad.core.engine import At


class Reads(st.HasArchitecture, st.HasTrainer, Protocol):
    """The slices that the rule reads."""


def changed(state: Reads, report: m.ArchitectureReport, _: At[Reads]) -> Decision:
    """Record a change of the model. If it is not the next one in the journal's ledger, refuse the report."""
    known = len(state.architecture.changes)
    if report.number != known + 1 or known >= st.CHANGES_MAX:
        why = f"change {report.number} of the model ({report.name}) was reported; the journal holds {known}"
        return Decision((state.trainer.refused(why),))
    return Decision((m.ArchitectureChanged.of(report),))
