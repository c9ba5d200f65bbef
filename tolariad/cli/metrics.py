"""`tolaria metrics`: the numbers of each step, or of each epoch, as a table, CSV or JSON lines.

Promises: CSV and JSON hold every step once. A table on a terminal may leave out rows and columns, and says so.
"""

from __future__ import annotations

import contextlib
import csv
import math
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from tolariad.cli import naming, output, runs
from tolariad.cli.completing import run_names
from tolariad.cli.errors import CommandError
from tolariad.cli.long_work import bar
from tolariad.cli.wrapping import named, width
from tolariad.core.calc.text.nearest import did_you_mean, nearest
from tolariad.core.calc.text.plain import STATE_SUFFIX, finite, number_state, rfc3339, safe
from tolariad.forensics import numbers

# A longer table shows this many rows spread over the whole run, and then this many of its end.
_SPREAD: Final = 30
_LAST: Final = 10


class Table(NamedTuple):
    """Rows of numbers: `places` and `time` say where each was measured. A NaN of `gaps` is a number that is missing."""

    places: tuple[str, ...]
    at: Sequence[tuple[int, ...]]
    time: Sequence[int]
    by_name: dict[str, Sequence[float]]
    gaps: frozenset[str]


@click.command()
@click.argument("arguments", nargs=-1, metavar="[RUN] [NAME]...", shell_complete=run_names)
@click.option("--epochs", "by_epoch", is_flag=True, help="One row for each epoch: means, and the validation's results.")
@click.option("--validations", "by_validation", is_flag=True, help="One row for each validation, within epochs too.")
@click.option("-n", "--lines", type=click.IntRange(min=0), metavar="N", help="Only the last N rows.")
@click.option("--csv", "as_csv", is_flag=True, help="Print every row as CSV.")
@click.option("--json", "as_json", is_flag=True, help="Print every row as a JSON line.")
@click.option(
    "--serve",
    is_flag=False,
    flag_value="127.0.0.1:9108",
    metavar="[HOST:PORT]",
    help="Serve the metrics of all runs of this node to Prometheus, by default on 127.0.0.1:9108.",
)
@naming.options
def metrics(
    *,
    arguments: tuple[str, ...],
    by_epoch: bool,
    by_validation: bool,
    lines: int | None,
    as_csv: bool,
    as_json: bool,
    serve: str | None,
    **place: Any,
) -> None:
    """Print the numbers of each step of RUN.

    They are loss, gradient norm, learning rate, and the task's metrics. Each NAME selects one. Steps that a rollback
    gave up are left out. With --serve, serve one page for Prometheus instead, until ^C.
    """
    if serve is not None:
        if arguments or any((by_epoch, by_validation, lines, as_csv, as_json, *place.values())):
            raise click.UsageError("--serve shows all runs of this node: leave the other arguments out")
        from tolariad.cli.serving import serve as serve_all

        serve_all(serve)
        return
    for one, other in (
        (("--csv", as_csv), ("--json", as_json)),
        (("--epochs", by_epoch), ("--validations", by_validation)),
    ):
        if one[1] and other[1]:
            raise click.UsageError(f"{one[0]} and {other[0]} exclude each other")
    journal, names = run_and_names(arguments, place)
    by_step = not (by_epoch or by_validation)
    with bar("reading"):
        table = _of_steps(journal) if by_step else _of_rows(_rows(journal, by_epoch=by_epoch))
    if names:
        wanted = [known(name, table.by_name, by_step=by_step) for name in names]
        table = table._replace(by_name={name: table.by_name[name] for name in wanted})
    first = 0 if lines is None else max(0, len(table.at) - lines)
    rows = range(first, len(table.at))
    if as_json:
        for row in rows:
            output.put_json(_plain(table, row))
    elif as_csv:
        _put_csv(table, rows)
    elif not rows:
        what = "finished epoch" if by_epoch else "validation" if by_validation else "step"
        output.note(f"the run has no {what} yet" if not table.at else "no row")
    else:
        _put_table(table, rows if lines is not None else _thinned(rows), len(rows))


def run_and_names(arguments: tuple[str, ...], place: Mapping[str, Any]) -> tuple[Path, tuple[str, ...]]:
    """Return the journal's folder and the names of numbers. The first argument is a run if one is called so.

    `place`: the options that name a run. If one is given, all arguments are names.
    """
    target = runs.named(**place)
    if target is not None:
        return runs.journal_of(target), arguments
    if not arguments:
        return runs.journal_of(runs.find()), ()
    first, *others = arguments
    try:
        return runs.journal_of(runs.by_name(first)), tuple(others)
    except CommandError:
        if "/" in first or Path(first).exists():
            raise
        with contextlib.suppress(CommandError):
            return runs.journal_of(runs.find()), arguments
        raise


def known(name: str, there: Iterable[str], *, by_step: bool = False) -> str:
    """Return the name. Raises UsageError if no number of the run has it."""
    if name in there:
        return name
    if by_step and name.startswith(numbers.OF_A_VALIDATION):
        raise click.UsageError(f"{name!r} is a result of validations: add --epochs or --validations")
    hint = safe(did_you_mean(nearest(name, there)))
    raise click.UsageError(f"The run has no number {name!r}; it has {', '.join(map(safe, there))}{hint or '.'}")


def _of_steps(journal: Path) -> Table:
    steps = numbers.steps_of(journal)
    at = [(int(step), int(epoch)) for step, epoch in zip(steps.step, steps.epoch, strict=True)]
    gaps = frozenset(steps.by_name) - {"loss", "lr"}
    return Table(("step", "epoch"), at, [int(wall) for wall in steps.wall], dict(steps.by_name), gaps)


def _rows(journal: Path, *, by_epoch: bool) -> Sequence[numbers.Row]:
    return numbers.epochs_of(journal) if by_epoch else numbers.validations_of(journal)


def _of_rows(rows: Sequence[numbers.Row]) -> Table:
    names = numbers.names_of(rows)
    by_name = {name: [one.by_name.get(name, math.nan) for one in rows] for name in names}
    return Table(("epoch", "step"), [(one.epoch, one.step) for one in rows], (), dict(by_name), frozenset(names))


def _plain(table: Table, row: int) -> dict[str, Any]:
    """Return one row as JSON can carry it. A number that is missing is left out."""
    plain: dict[str, Any] = dict(zip(table.places, table.at[row], strict=True))
    if table.time:
        plain["time"] = rfc3339(table.time[row])
    for name, column in table.by_name.items():
        value = column[row]
        if math.isnan(value) and name in table.gaps:
            continue
        plain[name] = finite(value)
        if not math.isfinite(value):
            plain[name + STATE_SUFFIX] = number_state(value)
    return plain


def _put_csv(table: Table, rows: Iterable[int]) -> None:
    """Print a head and the rows. A number that is missing is empty; floats can be read back bit for bit."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow([*table.places, *(["time"] if table.time else []), *map(safe, table.by_name)])
    columns = [(column, name in table.gaps) for name, column in table.by_name.items()]
    for row in rows:
        time = [rfc3339(table.time[row])] if table.time else []
        numbers_of_row = ("" if gaps and math.isnan(column[row]) else repr(column[row]) for column, gaps in columns)
        writer.writerow([*table.at[row], *time, *numbers_of_row])


def _thinned(rows: range) -> list[int]:
    """Return some rows spread over all, and the last ones."""
    count = len(rows)
    if count <= _SPREAD + _LAST:
        return list(rows)
    spread = {rows[index * (count - _LAST) // _SPREAD] for index in range(_SPREAD)}
    return [*sorted(spread), *rows[-_LAST:]]


def _put_table(table: Table, rows: Sequence[int], count: int) -> None:
    columns = shutil.get_terminal_size().columns
    head = (*table.places, *map(safe, table.by_name))
    cells = [(*map(str, table.at[row]), *_cells(table, row)) for row in rows]
    fitting = _fitting([head, *cells], columns)
    for line in output.table([one[:fitting] for one in (head, *cells)], numbers=range(fitting)):
        output.put(line)
    if len(rows) < count:
        output.note(
            f"{len(rows)} of {count} rows are shown: about every {round((count - _LAST) / _SPREAD)}th, and the last "
            f"{_LAST}. -n 50 shows the last 50; --csv and --json have all"
        )
    if fitting < len(head):
        more = ", ".join(map(named, head[fitting:]))
        output.note(f"{len(head) - fitting} columns do not fit: {more}. Name those that you want, or use --csv")


def _cells(table: Table, row: int) -> Iterator[str]:
    for name, column in table.by_name.items():
        value = column[row]
        yield "-" if math.isnan(value) and name in table.gaps else output.number(float(value))


def _fitting(rows: Sequence[tuple[str, ...]], columns: int) -> int:
    """Return how many columns of the table fit; three at least: where it was, and one number."""
    used = -2
    for index, column in enumerate(zip(*rows, strict=True)):
        used += 2 + max(map(width, column))
        if used > columns and index >= 3:
            return index
    return len(rows[0])
