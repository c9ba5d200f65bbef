"""The steps of a run as columns, out of its journal's tables: for plots, reports and searches over all of a run.

Promises: tens of bytes read a step where segments are closed, a walk over the events only in the newest one. It must not
know: what is drawn from them.
"""

from __future__ import annotations

from pathlib import Path

from journal import Columns, Tabulation, read_columns
from tolariad.core.step_table import STEP_COLUMNS, step_row


def step_columns(journal: Path) -> Columns:
    """Every completed step in the order of the journal: step, branch, wall (ns), loss, grad_norm, lr. Raises JournalError."""
    return read_columns(journal, Tabulation(STEP_COLUMNS, step_row))
