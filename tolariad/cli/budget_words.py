"""Format a run's budgets, as a mapping: those from the socket and those from a journal are formatted alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from tolariad.cli.output import painted
from tolariad.cli.output import table as table_lines
from tolariad.forensics.words import safe

_BUDGETS: Final = ("BUDGET", "LIMIT", "P50", "P95", "P99", "WORST", "COUNT", "OVER", "KIND")
_UNITS: Final = {"percent": "%", "messages": ""}
_NO_TIME: Final = 1e-6
Table = Mapping[str, Any]


def budget_lines(table: Table) -> Iterator[str]:
    """Yield a row for each budget, parts below their whole, then the notes."""
    head, *lines = table_lines([_BUDGETS, *map(_budget, table["budgets"])], range(1, len(_BUDGETS) - 1), gap=" ")
    yield head
    for line, row in zip(lines, table["budgets"], strict=True):
        yield painted(line, "yellow") if row["breaches"] else line
    for row in table["budgets"]:
        if row.get("compares") and row["count"]:
            yield f"{safe(str(row['name']))}: {safe(str(row['compares']))}"
        if row.get("clock") and row.get("waited"):
            yield _by_clock(row)
    if table["since"]:
        yield f"measured since {safe(table['since'])}, when the run's process started"
    if table["open"]:
        yield f"open breakers: {safe(', '.join(table['open']))}"
    if not table["act"]:
        yield "overruns are recorded only; nothing else follows (budgets.act: false)"


def _budget(row: Table) -> tuple[str, ...]:
    return (
        ("  " if row["part_of"] else "") + safe(str(row["name"])),
        f"{row['limit']:.3g} {_UNITS.get(row['unit'], row['unit'])}".rstrip(),
        # In the unit of the limit.
        *("-" if row.get(name) is None else f"{row[name]:.3g}" for name in ("p50", "p95", "p99", "worst")),
        str(row["count"]),
        str(row["breaches"]) if row["count"] else "-",
        str(row["kind"]),
    )


def _by_clock(row: Table) -> str:
    """Return the durations with and of the wait that does not count: median, 95th and 99th percentile."""
    with_it, waited = (
        "/".join(f"{_shortest(row[kind][name]):.3g}" for name in ("p50", "p95", "p99")) for kind in ("clock", "waited")
    )
    unit = _UNITS.get(row["unit"], row["unit"])
    return f"{safe(str(row['name']))}: {with_it} {unit} by the clock, {waited} {unit} of it the wait (p50/p95/p99)"


def _shortest(value: float) -> float:
    """Return 0 for a value in the first bucket of a histogram."""
    return 0.0 if value < _NO_TIME else value
