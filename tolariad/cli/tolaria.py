"""`tolaria`: control live runs, and read the journal of any run.

Promises: a command loads only what it needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NoReturn

import click

from tolariad.cli.errors import run_command
from tolariad.cli.lazy import LazyGroup
from tolariad.cli.naming import options

COMMANDS: Final = {
    "run": "tolariad.cli.tolariad:run",
    "status": "tolariad.cli.status:status",
    "watch": "tolariad.cli.watching.command:watch",
    "quarantine": "tolariad.cli.quarantine:quarantine",
    "lr": "tolariad.cli.rates:lr",
    "seeds": "tolariad.cli.seeds:seeds",
    "prune": "tolariad.cli.prune:prune",
    "logs": "tolariad.cli.logs:logs",
    "list": "tolariad.cli.status:list_runs",
    "events": "tolariad.cli.events:events",
    "state": "tolariad.cli.state:state",
    "why": "tolariad.cli.why:why",
    "diff": "tolariad.cli.diff:diff",
    "checkout": "tolariad.cli.checkout:checkout",
    "reexecute": "tolariad.cli.reexecute:reexecute",
    "report": "tolariad.cli.report:report",
    "metrics": "tolariad.cli.metrics:metrics",
    "plot": "tolariad.cli.plot:plot",
    "reload": "tolariad.cli.reloading:reload",
    "follow": "tolariad.cli.following:follow",
    "checkpoints": "tolariad.cli.checkpoints:checkpoints",
    "export-weights": "tolariad.cli.exporting:export_weights",
    "journal": "tolariad.cli.journals:journal",
    "call": "tolariad.cli.status:call",
    "version": "tolariad.cli.version:version",
}


@click.command(cls=LazyGroup, places=COMMANDS, rest="tolariad.cli.orders")
@options
@click.version_option(package_name="tolariad", prog_name="tolaria")
def tolaria(**_: object) -> None:
    """Inspect and control training runs, and read their journals.

    Name a run with -r RUN (--run, --dir), with --socket PATH, or by $TOLARIA_RUN. RUN is a name or a
    folder; most commands take it as an argument too. If you name none, the only live run in ./runs
    is meant, then the only live run.
    """
    # The commands read these options from the root context.


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run `arguments`, or the command line's if None, and exit the process with the exit code."""
    run_command(tolaria, "tolaria", arguments)
