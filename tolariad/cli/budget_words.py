"""Format the table of budgets, for `tolaria status --budgets`.

The table is a mapping, so that one from the socket and one from a journal are formatted alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from tolariad.cli.output import painted
from tolariad.forensics.words import safe

_HEAD: Final = ("BUDGET", "LIMIT", "P50", "P99", "WORST", "MEASURED", "OVER", "KIND")
_WORDS: Final = {"percent": "%", "messages": ""}


def budget_lines(table: Mapping[str, Any]) -> Iterator[str]:
    """Yield a row for each budget, parts below their whole, then the notes."""
    cells = [(_HEAD, False), *((_cells(row), bool(row["breaches"])) for row in table["budgets"])]
    widths = [max(len(line[column]) for line, _ in cells) for column in range(len(_HEAD))]
    for line, is_over in cells:
        shown = "  ".join(
            cell.ljust(width) if column in (0, len(_HEAD) - 1) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        yield painted(shown, "yellow") if is_over else shown
    if table["since"]:
        yield f"measured since {safe(table['since'])}, when the daemon started"
    if table["open"]:
        yield f"open breakers: {safe(', '.join(table['open']))}"
    if not table["act"]:
        yield "overruns are recorded only; nothing else follows (budgets.act: false)"


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    unit = row["unit"]
    return (
        ("  " if row["part_of"] else "") + safe(str(row["name"])),
        _number(row["limit"], unit),
        *(_number(row[name], unit) for name in ("p50", "p99", "worst")),
        str(row["count"]),
        str(row["breaches"]) if row["count"] else "-",
        str(row["kind"]),
    )


def _number(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{value:.3g} {_WORDS.get(unit, unit)}".rstrip()
