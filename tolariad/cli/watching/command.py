"""`tolaria watch`: the full screen on a terminal, else a line for each change."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Any, Final

import click
import msgspec

from tolariad.cli import naming, output, runs
from tolariad.cli.errors import Exit
from tolariad.core.calc.bounds import SECONDS_MAX

# A screen that asks without a pause would take a whole core.
_INTERVAL_MIN_S: Final = 0.2


def _seconds(_: click.Context, __: click.Parameter, value: float) -> float:
    if not 0.0 <= value <= SECONDS_MAX:
        raise click.BadParameter(f"give a number of seconds from 0 to {SECONDS_MAX:g}, not {value}")
    return value


@click.command()
@naming.argument
@click.option("--plain", is_flag=True, help="Print a line for each update instead of taking the whole screen.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines.")
@click.option(
    "--interval", default=1.0, show_default=True, callback=_seconds, help="Least number of seconds between two updates."
)
@naming.options
def watch(*, plain: bool, as_json: bool, interval: float, **place: Any) -> int:
    """Show a run: curves, rates, checkpoints, what it did last. Keys give orders, after a question.

    On a terminal it takes the whole screen, which needs the extra `tui`; q ends it. Elsewhere, and with --plain, it
    prints the live run's progress until the run ends. If several runs are live and none is named, choose one.
    """
    named = runs.chosen(**naming.taken(place))
    on_screen = not (plain or as_json) and _is_terminal()
    if on_screen and importlib.util.find_spec("textual") is None:
        output.note("the full screen needs textual: pip install 'tolariad[tui]'")
        on_screen = False
    if not on_screen:
        target = named if named is not None else runs.the_only(runs.live())
        return _lines(target, rewrite=False if plain else None, as_json=as_json, interval_s=interval)
    targets = [named] if named is not None else runs.live()
    if not targets:
        runs.the_only(targets)
    return _screen(targets, interval)


def _is_terminal() -> bool:
    """Return whether a screen can be shown and keys be read. Textual writes to stderr, not to stdout."""
    return os.environ.get("TERM") not in (None, "", "dumb") and all(
        stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)
    )


def _screen(targets: list[runs.Target], interval_s: float) -> int:
    """Show one of the runs on the whole screen until the user leaves it, then its last line."""
    if len(targets) == 1 and targets[0].journal is None:
        # Without a journal there is nothing to show but the daemon's answer.
        with targets[0].connect():
            pass
    # Textual, and the events that sentences need, take longer to import than a person waits for a sign of life.
    sys.stdout.write("\r".join([output.shown(f"watching {_words(targets)}"), ""]))
    sys.stdout.flush()
    from tolariad.cli.status_words import status_row
    from tolariad.cli.watching.app import WatchApp

    app = WatchApp(targets, interval_s=max(_INTERVAL_MIN_S, interval_s))
    app.run()
    if app.view is not None and app.view.status is not None:
        output.put(f"{app.view.status['name']}  {status_row(app.view.status)}", indent=4)
    return app.return_code or Exit.DONE


def _words(targets: list[runs.Target]) -> str:
    return str(targets[0].folder or targets[0].socket) if len(targets) == 1 else f"one of {len(targets)} live runs"


def _lines(target: runs.Target, *, rewrite: bool | None, as_json: bool, interval_s: float) -> int:
    """Print the progress of a live run until it ends."""
    from tolariad.cli.progress import Progress
    from tolariad.cli.status_words import status_row
    from tolariad.control.client import read_reply
    from tolariad.control.replies import RunStatus

    progress, last = Progress(rewrite=rewrite, silent_s=0.0), None
    with target.connect() as client:
        for reply in client.stream("Watch", {"interval_s": interval_s}):
            told = msgspec.to_builtins(read_reply(reply.get("status") or {}, RunStatus))
            if as_json:
                output.put_json(told)
            else:
                last = output.printable(told)
                progress.show(last)
    if last is not None and progress.end():
        output.put(status_row(last))
    return Exit.DONE
