"""The write-ahead journal: it takes opaque events and writes them as durable frames.

An event is one msgpack value, which the journal never interprets. `epoch` and `step` are labels that the caller gives.
The package makes three promises. A batch is durable when `Journal.commit` returns. Reading returns exactly what was
committed, in order. If existing bytes do not verify, the journal refuses to write and names the damage.
`docs/journal-format.md` describes the bytes.
"""

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
