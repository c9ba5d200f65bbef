"""`tolaria`: control live runs, and read the journal of any run.

Promises: a command loads only what it needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn

import click

from tolariad.cli.errors import run_command
from tolariad.cli.lazy import LazyGroup

COMMANDS: Final = {
    "status": "tolariad.cli.live:status",
    "watch": "tolariad.cli.live:watch",
    "rollback": "tolariad.cli.recovery:rollback",
    "emergency": "tolariad.cli.recovery:emergency",
    "quarantine": "tolariad.cli.quarantine:quarantine",
    "lr": "tolariad.cli.rates:lr",
    "logs": "tolariad.cli.logs:logs",
    "list": "tolariad.cli.listing:list_runs",
    "events": "tolariad.cli.events:events",
    "state": "tolariad.cli.asking:state",
    "why": "tolariad.cli.asking:why",
    "checkpoints": "tolariad.cli.stored:checkpoints",
    "export-weights": "tolariad.cli.weights:export_weights",
    "journal": "tolariad.cli.journals:journal",
    "call": "tolariad.cli.raw:call",
}


@click.command(cls=LazyGroup, places=COMMANDS, rest="tolariad.cli.orders")
@click.option("-r", "--run", "name", help="The run's name.")
@click.option("--dir", "folder", type=click.Path(path_type=Path), help="The run's folder.")
@click.option("--socket", "socket", type=click.Path(path_type=Path), help="The run's control socket.")
@click.version_option(package_name="tolariad", prog_name="tolaria")
def tolaria(name: str | None, folder: Path | None, socket: Path | None) -> None:
    """Inspect and control training runs, and read their journals.

    Name a run with -r NAME, --dir RUN or --socket PATH, or set $TOLARIA_RUN. If you name none, a command that takes
    these options uses the only live run. Where a command takes RUN, give the run's folder or its name.
    """
    # The commands read these options from the root context.
    del name, folder, socket


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run `arguments`, or the command line's if None, and exit the process with the exit code."""
    run_command(tolaria, "tolaria", arguments)
