"""`tolaria status`, `tolaria list` and `tolaria call`.

If no daemon answers, `status` folds the run's journal and shows the run as not live.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from tolariad.cli import naming, output, runs
from tolariad.cli.budget_words import budget_lines
from tolariad.cli.errors import CommandError, Exit, translated
from tolariad.cli.long_work import bar
from tolariad.cli.status_words import FACTS_INDENT, phase_words, status_lines
from tolariad.control.where import SOCKET_NAME, socket_of
from tolariad.forensics.words import safe

if TYPE_CHECKING:
    from tolariad.control.replies import RunStatus
    from tolariad.control.reply_tables import BudgetTable
    from tolariad.core.calc.health.histogram import Histogram
    from tolariad.core.state.run_state import RunState


def folded(journal: Path) -> RunStatus:
    """Return the status of a run without a daemon, from the newest capture and the events after it."""
    from journal.reader import Reader
    from tolariad.control.status import LiveFacts, run_status
    from tolariad.forensics.moment import state_at

    with Reader(journal) as reader:
        state = state_at(reader).state
        told = run_status(state, str(journal.parent.resolve()), LiveFacts(segment=reader.segments))
    return msgspec.structs.replace(told, dead=_is_dead(state, journal))


def _is_dead(state: RunState, journal: Path) -> bool:
    """Return whether a run has not ended, and the process that recorded it has. False if that is not known."""
    from tolariad.boot import boot_id, is_locked
    from tolariad.core import state as st

    return state.run.phase not in st.TERMINAL and state.run.boot_id == boot_id() and is_locked(journal) is False


def _folded_budgets(journal: Path) -> BudgetTable:
    from tolariad.control.tables import budget_table

    return budget_table(runs.folded(journal), _measured(journal))


def _measured(journal: Path) -> Mapping[str, Histogram]:
    """Add up what the whole journal says of the budgets."""
    from journal.reader import Reader
    from tolariad.core.messages.vocabulary import Unknown, decode_event
    from tolariad.telemetry.histograms import BudgetHistograms, may_add

    histograms = BudgetHistograms()
    with Reader(journal) as reader:
        for entry in reader:
            if not may_add(bytes(entry.event)):
                continue
            try:
                event = decode_event(entry.event)
            except (ValueError, RecursionError):
                continue  # the fold says that it cannot be read
            if not isinstance(event, Unknown):
                histograms.add(event)
    return histograms.by_budget


@click.command()
@naming.argument
@click.option("-q", "--quiet", is_flag=True, help="Print nothing; exit 0 if running, 3 if not live, else 1.")
@click.option("--budgets", is_flag=True, help="Show the budgets: limit, measurements, overruns.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@naming.takes_target
def status(target: runs.Target, *, quiet: bool, budgets: bool, as_json: bool) -> int:
    """Show a run's phase, progress, loss and checkpoint.

    Exit code 3 means that the run is not live: no daemon answers, and the status is read from the journal.
    """
    with bar("reading the run"):
        shown = target.ask("Status", folded)
        if budgets:
            shown["budgets"] = target.ask("Budgets", _folded_budgets)
    if not quiet:
        if as_json:
            output.put_json(shown)
        else:
            told = output.printable(shown)
            for line in budget_lines(told["budgets"]) if budgets else status_lines(told):
                output.put(line, indent=2 if budgets else FACTS_INDENT)
    if not shown["live"]:
        return Exit.NOT_REACHABLE
    return Exit.NO if quiet and shown["phase"] != "running" else Exit.DONE


def _targets(folder: Path | None) -> Iterator[runs.Target]:
    if folder is None:
        yield from runs.candidates()
        return
    if not folder.is_dir():
        raise CommandError(Exit.USAGE, f"there is no folder {folder}", hint="give a folder that holds runs")
    for entry in (folder, *sorted(folder.iterdir())):
        try:
            if (entry / runs.JOURNAL).is_dir():
                yield runs.Target(entry, socket_of(entry))
        except OSError:
            # A folder that may not be examined has a row too, which says so.
            yield runs.Target(entry, entry / SOCKET_NAME)


def row(target: runs.Target) -> dict[str, Any]:
    """Return what is known about one run. If its status cannot be read, `error` says why."""
    folder = target.folder
    shown: dict[str, Any] = {"name": (folder or target.socket.parent).name, "dir": str(folder) if folder else None}
    try:
        status = target.ask("Status", folded)
    except Exception as error:
        known = translated(error)
        if known is None:
            raise
        return {**shown, "live": False, "phase": None, "step": None, "error": known.what, "size": _size(folder)}
    folder = folder or Path(status["dir"])
    copied = ("live", "dead", "phase", "epoch", "epochs", "step", "loss", "loss_state", "accuracy")
    return {
        "name": status["name"] or shown["name"],
        "dir": str(folder),
        **{name: status[name] for name in copied},
        "age_s": _age_s(status["time"]),
        "size": _size(folder),
        "error": None,
    }


def _age_s(moment: str) -> float | None:
    """Return the seconds since `moment`. The year 1970 means that nothing is recorded yet: None."""
    try:
        recorded_s = datetime.fromisoformat(moment).timestamp()
    except (ValueError, OverflowError):
        return None
    return max(0.0, time.time() - recorded_s) if recorded_s else None


def _size(folder: Path | None) -> int | None:
    """Return the bytes on disk: allocated blocks, so a sparse file counts what it really takes."""
    if folder is None:
        return None
    total, pending = 0, [str(folder)]
    while pending:
        # A folder that cannot be read, or is too deep to be named, does not count.
        with contextlib.suppress(OSError), os.scandir(pending.pop()) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
    return total


@click.command("list")
@click.argument("within", required=False, metavar="FOLDER", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines.")
@naming.options
def list_runs(*, within: Path | None, as_json: bool, **place: Any) -> int:
    """List the runs in FOLDER; by default live runs and ./runs.

    With an option that names a run, list that run, or those in that folder.
    """
    target = None if within is not None else runs.named(**place)
    if target is not None and target.journal is None and target.folder is not None:
        within = target.folder
    targets = [target] if target is not None and within is None else _targets(within)
    with bar("reading the runs"):
        rows = [row(target) for target in targets]
    head = ("NAME", "PHASE", "LIVE", "EPOCH", "STEP", "LOSS", "ACCURACY", "AGE", "SIZE", "FOLDER")
    output.put_rows(rows, head, _run_cells, as_json=as_json)
    if not rows and not as_json:
        output.note("no runs found; `tolariad run --task digits --dir runs/first` starts one")
    for one in rows:
        if one["error"] and not as_json:
            output.note(safe(f"{one['name']}: {one['error']}"))
    return Exit.DONE


def _run_cells(one: Mapping[str, Any]) -> tuple[str, ...]:
    accuracy = one.get("accuracy")
    return (
        safe(str(one["name"])),
        safe(phase_words(one)) if one["phase"] else "?",
        "yes" if one["live"] else "no",
        f"{one['epoch']}/{one['epochs']}" if one["phase"] else "-",
        output.number(one["step"]),
        safe(output.number(one.get("loss"), one.get("loss_state"))),
        f"{100 * accuracy:.2f} %" if accuracy is not None else "-",
        output.age(one.get("age_s")),
        output.size(one["size"]) if one["size"] is not None else "-",
        safe(str(one["dir"] or "-")),
    )


def _object(_: click.Context, __: click.Parameter, text: str | None) -> dict[str, Any]:
    """Read the parameters of a call, before the run is looked for."""
    try:
        given = json.loads(text) if text else {}
    except ValueError as error:
        raise click.UsageError(f"the parameters are not valid JSON: {error}") from error
    if not isinstance(given, dict):
        raise click.UsageError('the parameters must be a JSON object, such as {"reason": "lunch"}')
    return given


@click.command()
@click.argument("method")
@click.argument("parameters", required=False, metavar="[JSON]", callback=_object)
@click.option("--more", is_flag=True, help="Ask for a stream of replies. Watch and Events always stream.")
@click.option("--json", is_flag=True, expose_value=False, help="Errors are JSON too. Replies always are.")
@naming.takes_target
def call(target: runs.Target, *, method: str, parameters: dict[str, Any], more: bool) -> int:
    """Call a method of the control interface; print JSON lines.

    METHOD is a name such as Status, or a qualified name such as org.varlink.service.GetInfo. JSON is an object with the
    parameters.
    """
    streams = more or method.rpartition(".")[2] in ("Watch", "Events")
    with target.connect() as client:
        for reply in client.stream(method, parameters) if streams else [client.call(method, parameters)]:
            output.put_json(reply)
    return Exit.DONE
