"""`tolaria rollback` and `tolaria emergency`: orders that can lose work and therefore ask first."""

from __future__ import annotations

from typing import Any

import click

from tolariad.cli.orders import confirm, order, takes_run


@click.command()
@takes_run
@click.option("--to", metavar="ID", help="Go back to this checkpoint; `tolaria checkpoints RUN` lists them.")
@click.option(
    "--epoch",
    type=click.IntRange(min=0),
    metavar="N",
    help="Go back to the newest checkpoint at or before the end of epoch N.",
)
@click.option(
    "--step",
    type=click.IntRange(min=0),
    metavar="N",
    help="Go back to the newest checkpoint at or before step N.",
)
@click.option(
    "--tier",
    type=click.Choice(["fast", "full"]),
    help="fast restores a snapshot from memory, full a checkpoint from disk.",
)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def rollback(
    context: click.Context,
    *,
    to: str | None,
    epoch: int | None,
    step: int | None,
    tier: str | None,
    yes: bool,
    **given: Any,
) -> int:
    """Go back to a checkpoint and train on from there.

    Without --to, --epoch or --step the target is the newest promoted checkpoint. The steps after the target are
    abandoned: they stay in the journal, but no longer count.
    """
    if sum(one is not None for one in (to, epoch, step)) > 1:
        raise click.UsageError("--to, --epoch and --step each name a target: give only one of them")
    if to is not None and not to.strip():
        # An unset variable in a script gives the empty string. It must not mean "the newest promoted checkpoint".
        raise click.UsageError("--to is empty: name a checkpoint, or leave --to out for the newest promoted one")
    if not yes:
        confirm("Roll back? The steps after the checkpoint will be abandoned (they stay in the journal).")
    return order(context, "Rollback", given, to=to, epoch=epoch, step=step, tier=tier)


@click.command()
@click.argument("level", type=click.Choice(["minor", "major", "severe", "critical"], case_sensitive=False))
@takes_run
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def emergency(context: click.Context, *, level: str, yes: bool, **given: Any) -> int:
    """Raise an emergency of the given level.

    MINOR is only recorded. MAJOR rolls back to a checkpoint. SEVERE rolls back to a snapshot in memory and enters
    conservative mode. CRITICAL freezes the trainer at once. The command returns when the reaction is complete.
    """
    if not yes and level.lower() != "minor":
        confirm(f"Raise a {level.upper()} emergency? It interrupts the training.")
    return order(context, "Emergency", given, level=level.lower())
