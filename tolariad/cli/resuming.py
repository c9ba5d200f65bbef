"""`tolaria resume --ranks N`: start a run that has ended again, with another number of ranks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from tolariad.cli import naming, runs
from tolariad.cli.errors import CommandError, Exit


def or_starts(order: Callable[..., int]) -> Callable[..., int]:
    """Add the option --ranks to a command that orders a live run to go on: with it the command starts the run."""

    @click.option(
        "--ranks",
        type=click.IntRange(min=1),
        metavar="N",
        help="Start the run, which is not live, with N processes, in the foreground. For runs with exact sums.",
    )
    @functools.wraps(order)
    def command(*, ranks: int | None, **given: Any) -> int:
        if ranks is None:
            return order(**given)
        place = naming.taken(given)
        if any(given.values()):
            raise click.UsageError("--ranks starts a run, and the other options are of an order to a live one")
        target = runs.find(**place)
        if target.folder is None:
            raise click.UsageError("--ranks needs the run's folder or name, not a socket")
        if runs.is_live(target):
            what = f"{target.folder} is live, and its number of ranks is that of its start"
            hint = f"`tolaria stop --dir {target.folder}`, and then this command"
            raise CommandError(Exit.REFUSED, what, hint=hint, name="WrongPhase")
        runs.journal_of(target)  # or there is no run that could go on
        from tolariad.cli.tolariad import run

        sets = (f"parallel.ranks={ranks}",)
        code: int = click.get_current_context().invoke(run, folder=str(target.folder), sets=sets)
        return code

    return command
