"""Write a journal as Parquet, by duckdb (extra `forensics`): one row an event, or one row a step.

Promises: every event and every step has its row. A number that is not finite stays what it is in a step's columns; in
an event's JSON it is null with a word beside it. A column that only later steps have is there from the first row on.
The file appears when it is complete.
"""

from __future__ import annotations

import csv
import json
import tempfile
from collections.abc import Callable, Iterable
from itertools import repeat
from pathlib import Path
from typing import Any, Final, TextIO

from journal.reader import Reader
from tolariad.core.calc.text.plain import plain_event
from tolariad.forensics import numbers
from tolariad.forensics.timeline import decode_fields, number_in
from tolariad.forensics.words import by_whom, in_words, named

# Given, not found out: duckdb would look at the first lines only, and a field may come later.
_EVENT_COLUMNS: Final = {
    "seq": "UBIGINT",
    "wall_ns": "BIGINT",
    "type": "VARCHAR",
    "step": "BIGINT",
    "epoch": "BIGINT",
    "branch": "BIGINT",
    "cause": "UBIGINT",
    "actor": "VARCHAR",
    "sentence": "VARCHAR",
    "payload": "JSON",
}
_EVENT_BYTES_MAX: Final = 1 << 30
_STEP_COLUMNS: Final = (("row", "BIGINT"), ("step", "BIGINT"), ("branch", "BIGINT"), ("epoch", "BIGINT"))


class NoDuckdb(Exception):
    """The package that writes Parquet is not installed."""

    def __init__(self) -> None:
        super().__init__("Parquet is written by duckdb, which is not installed: pip install 'tolariad[forensics]'")


def write_events(journal: Path, target: Path) -> int:
    """Write one row for each event. Return their number. Raises NoDuckdb, JournalError, OSError."""

    def lines(stream: TextIO) -> int:
        count = 0
        with Reader(journal) as reader:
            for entry in reader:
                stream.write(json.dumps(_event(entry.seq, decode_fields(entry.event))) + "\n")
                count += 1
        return count

    columns = "{" + ", ".join(f"{name}: '{kind}'" for name, kind in _EVENT_COLUMNS.items()) + "}"
    shown = ", ".join(name for name in _EVENT_COLUMNS if name not in ("seq", "wall_ns"))
    return _written(
        target,
        lines,
        lambda file: (
            f"SELECT seq, make_timestamp_ns(wall_ns) AS time, {shown} FROM read_json({file}, "  # noqa: S608 - quoted
            f"format = 'newline_delimited', columns = {columns}, maximum_object_size = {_EVENT_BYTES_MAX})"
        ),
    )


def write_steps(journal: Path, target: Path) -> int:
    """Write one row for each step that was made. Return their number.

    `row`: the order in which they were made; `in_line`: part of the run as it stands. Raises as `write_events`,
    ReplayError.
    """
    every = numbers.executed_of(journal)
    steps = every.steps
    line = bytearray(len(steps))
    for row in every.line:
        line[row] = 1

    def rows(stream: TextIO) -> int:
        columns = [range(1, len(steps) + 1), steps.step, every.branch, steps.epoch, steps.wall, line]
        # A norm that was not measured is absent; a loss that is NaN is NaN.
        values = [
            (("" if one != one else one for one in column) if name == "grad_norm" else column)  # noqa: PLR0124
            for name, column in steps.by_name.items()
        ]
        csv.writer(stream).writerows(zip(*columns, *values, strict=True))
        return len(steps)

    fixed = [*_STEP_COLUMNS, ("wall_ns", "BIGINT"), ("in_line", "BOOLEAN")]
    shown = _unlike(steps.by_name, {"time", *(name for name, _ in fixed)})
    kinds = [*fixed, *zip(shown, repeat("DOUBLE"))]
    columns = "{" + ", ".join(f"{_quoted(name)}: '{kind}'" for name, kind in kinds) + "}"
    names = ", ".join(f'"{_doubled(name)}"' for name in shown)
    return _written(
        target,
        rows,
        lambda file: (
            f'SELECT "row", step, branch, epoch, make_timestamp_ns(wall_ns) AS time, in_line, {names} '  # noqa: S608
            f"FROM read_csv({file}, header = false, auto_detect = false, columns = {columns})"
        ),
    )


def _event(seq: int, fields: dict[str, Any]) -> dict[str, Any]:
    actor = fields.get("actor")
    shown = plain_event(seq, fields)
    payload = {name: value for name, value in shown.items() if name not in ("seq", "time", "type")}
    return {
        "seq": seq,
        "wall_ns": _in_range(number_in(fields, "wall")) or 0,
        "type": named(fields),
        **{name: _in_range(number_in(fields, name)) for name in ("step", "epoch", "branch", "cause")},
        "actor": by_whom(actor) if isinstance(actor, dict) else None,
        "sentence": in_words(fields),
        "payload": payload,
    }


def _unlike(names: Iterable[str], taken: set[str]) -> list[str]:
    """Return names that also differ if capital letters do not count, as they do not in SQL."""
    found, taken = [], {name.lower() for name in taken}
    for name in names:
        shown, number = name, 1
        while shown.lower() in taken:
            number += 1
            shown = f"{name}_{number}"
        taken.add(shown.lower())
        found.append(shown)
    return found


def _in_range(value: int | None) -> int | None:
    return value if value is not None and 0 <= value < 2**63 else None


def _written(target: Path, lines: Callable[[TextIO], int], query: Callable[[str], str]) -> int:
    """Write lines into a file of its own, and let duckdb make the table of them."""
    try:
        import duckdb
    except ImportError as error:
        raise NoDuckdb from error
    with tempfile.TemporaryDirectory(prefix=".tolaria-", dir=target.absolute().parent) as folder:
        source, made = Path(folder) / "rows", Path(folder) / "table.parquet"
        with _opened(source) as stream:
            count = lines(stream)
        with duckdb.connect(config={"autoinstall_known_extensions": "false"}) as connection:
            copied = f"COPY ({query(_quoted(str(source)))}) TO {_quoted(str(made))} (FORMAT parquet, COMPRESSION zstd)"
            connection.execute(copied)
        made.replace(target)
    return count


def _opened(path: Path) -> TextIO:
    return path.open("w", encoding="utf-8", newline="")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _doubled(text: str) -> str:
    return text.replace('"', '""')
