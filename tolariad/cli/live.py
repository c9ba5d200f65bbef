"""`tolaria status` and `tolaria watch`.

If no daemon answers, `status` folds the run's journal and shows the run as not live.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from tolariad.cli import output, runs
from tolariad.cli.budget_words import budget_lines
from tolariad.cli.errors import Exit
from tolariad.cli.status_words import status_lines, status_row
from tolariad.control.client import NotReachable
from tolariad.core.bounds import SECONDS_MAX

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tolariad.core.health.histogram import Meter

_METHOD: Final = "io.esper.tolaria."


def current(target: runs.Target, *, budgets: bool = False) -> dict[str, Any]:
    """Return the run's status, from its daemon or else from its journal. With `budgets`, add the table of budgets.

    Raises NotReachable if there is neither a daemon nor a journal.
    """
    try:
        with target.connect() as client:
            status: dict[str, Any] = client.call(_METHOD + "Status")["status"]
            return status | {"budgets": client.call(_METHOD + "Budgets")["table"]} if budgets else status
    except NotReachable:
        if target.folder is None or not (target.folder / runs.JOURNAL).is_dir():
            raise
    return folded(target.folder, budgets=budgets)


def folded(folder: Path, *, budgets: bool = False) -> dict[str, Any]:
    """Return the status of a run without a daemon, from the newest capture and the events after it."""
    import msgspec

    from journal.reader import Reader
    from tolariad.control.budgets import budget_table
    from tolariad.control.status import run_status
    from tolariad.forensics.moment import state_at

    path = folder / runs.JOURNAL
    with Reader(path) as reader:
        state = state_at(reader).state
        segment = reader.segments
    shown: dict[str, Any] = msgspec.to_builtins(run_status(state, str(folder.resolve()), None, segment=segment))
    if not budgets:
        return shown
    return shown | {"budgets": msgspec.to_builtins(budget_table(state, _measured(path)))}


def _measured(journal: Path) -> Mapping[str, Meter]:
    """What the whole journal says of the budgets."""
    from journal.reader import Reader
    from tolariad.core.vocabulary import Unknown, decode_event
    from tolariad.telemetry.histograms import BudgetHistograms, may_add

    histograms = BudgetHistograms()
    with Reader(journal) as reader:
        for entry in reader:
            if may_add(bytes(entry.event)) and not isinstance(event := decode_event(entry.event), Unknown):
                histograms.add(event)
    return histograms.meters


@click.command()
@click.argument("run", required=False)
@click.option("-q", "--quiet", is_flag=True, help="Print nothing; exit 0 if running, 3 if not live, else 1.")
@click.option("--budgets", is_flag=True, help="Show the budgets: limit, measurements, overruns.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@runs.takes_target
def status(target: runs.Target, *, quiet: bool, budgets: bool, as_json: bool) -> int:
    """Show a run's phase, progress, loss and checkpoint.

    Exit code 3 means that the run is not live: no daemon answers, and the status is read from the journal.
    """
    shown = current(target, budgets=budgets)
    if not quiet:
        if as_json:
            output.put_json(shown)
        else:
            for line in budget_lines(shown["budgets"]) if budgets else status_lines(shown):
                output.put(line)
    if not shown["live"]:
        return Exit.NOT_REACHABLE
    return Exit.NO if quiet and shown["phase"] != "running" else Exit.DONE


def _seconds(_: click.Context, __: click.Parameter, value: float) -> float:
    if not 0.0 <= value <= SECONDS_MAX:
        raise click.BadParameter(f"give a number of seconds from 0 to {SECONDS_MAX:g}, not {value}")
    return value


@click.command()
@click.argument("run", required=False)
@click.option("--plain", is_flag=True, help="Print a line for each update instead of rewriting one line.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines.")
@click.option(
    "--interval", default=1.0, show_default=True, callback=_seconds, help="Least number of seconds between two lines."
)
@runs.takes_target
def watch(target: runs.Target, *, plain: bool, as_json: bool, interval: float) -> int:
    """Show a live run's progress until the run ends."""
    rewrite = not plain and not as_json and sys.stdout.isatty()
    with target.connect() as client:
        for reply in client.stream(_METHOD + "Watch", {"interval_s": interval}):
            if as_json:
                output.put_json(reply["status"])
            else:
                _show(status_row(reply["status"]), rewrite=rewrite)
    if rewrite:
        output.put("")
    return Exit.DONE


def _show(line: str, *, rewrite: bool) -> None:
    line = output.shown(line)
    if rewrite:
        import shutil

        width = shutil.get_terminal_size().columns
        print(f"\r\x1b[K{line[: width - 1]}", end="", flush=True)
    else:
        print(line, flush=True)
