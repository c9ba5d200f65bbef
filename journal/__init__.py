"""The write-ahead journal: it takes opaque events and writes them as durable frames.

An event is one msgpack value, which the journal never interprets. `epoch` and `step` are labels that the caller gives.
The package makes three promises. A batch is durable when `Journal.commit` returns. Reading returns exactly what was
committed, in order. If existing bytes do not verify, the journal refuses to write and names the damage.
`docs/journal-format.md` describes the bytes.

A name is imported when it is first used, so whoever reads a journal does not load its writer.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from journal.columns import Columns, Tabulation, read_columns
    from journal.errors import (
        BatchRefused,
        Damage,
        FileSystemRefused,
        JournalClosed,
        JournalDamaged,
        JournalError,
        JournalFailed,
        JournalFull,
        JournalLocked,
        JournalMissing,
        JournalTooNew,
    )
    from journal.export import export_json_lines, export_raw_lines
    from journal.files import Files
    from journal.format import FrameKind
    from journal.losing import Loss
    from journal.opening import Recovery, RecoveryKind
    from journal.reader import Reader
    from journal.records import JournalEntry, Mark
    from journal.repairing import RepairAction, plan_repair, repair
    from journal.rows import Rows, others, rows_and_records
    from journal.summary import summarize
    from journal.verification import Problem, Verdict, verify
    from journal.writer import Journal

__all__ = [
    "BatchRefused",
    "Columns",
    "Damage",
    "JournalEntry",
    "FileSystemRefused",
    "Files",
    "FrameKind",
    "Journal",
    "JournalClosed",
    "JournalDamaged",
    "JournalError",
    "JournalFailed",
    "JournalFull",
    "JournalLocked",
    "JournalMissing",
    "JournalTooNew",
    "Loss",
    "Mark",
    "Problem",
    "Reader",
    "Recovery",
    "RecoveryKind",
    "RepairAction",
    "Rows",
    "Tabulation",
    "Verdict",
    "export_json_lines",
    "export_raw_lines",
    "others",
    "plan_repair",
    "read_columns",
    "repair",
    "rows_and_records",
    "summarize",
    "verify",
]

# Each public name and the module that holds it.
_HOMES: Final = {
    "Columns": "columns",
    "Tabulation": "columns",
    "read_columns": "columns",
    "BatchRefused": "errors",
    "Damage": "errors",
    "FileSystemRefused": "errors",
    "JournalClosed": "errors",
    "JournalDamaged": "errors",
    "JournalError": "errors",
    "JournalFailed": "errors",
    "JournalFull": "errors",
    "JournalLocked": "errors",
    "JournalMissing": "errors",
    "JournalTooNew": "errors",
    "export_json_lines": "export",
    "export_raw_lines": "export",
    "Files": "files",
    "FrameKind": "format",
    "Loss": "losing",
    "Recovery": "opening",
    "RecoveryKind": "opening",
    "Reader": "reader",
    "JournalEntry": "records",
    "Mark": "records",
    "RepairAction": "repairing",
    "plan_repair": "repairing",
    "repair": "repairing",
    "Rows": "rows",
    "others": "rows",
    "rows_and_records": "rows",
    "summarize": "summary",
    "Problem": "verification",
    "Verdict": "verification",
    "verify": "verification",
    "Journal": "writer",
}


def __getattr__(name: str) -> Any:
    """Import the module that holds `name`."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    """Return the names of the package, including those not imported yet."""
    return sorted({*globals(), *_HOMES})
