"""The steps of a run as columns, read from the tables in its journal: for plots, reports and searches over a whole run.

Promises: in closed segments it reads some tens of bytes a step. Only the newest segment is read event by event.
"""

from __future__ import annotations

from pathlib import Path

from journal import Columns, Tabulation, read_columns
from tolariad.core.steps.table import STEP_COLUMNS, step_row


def step_columns(journal: Path) -> Columns:
    """Return every completed step in journal order: step, branch, wall (ns), loss, grad_norm, lr.

    Raises JournalError.
    """
    return read_columns(journal, Tabulation(STEP_COLUMNS, step_row))
