"""`tolaria rollback` and `tolaria emergency`: orders that can lose work, so they ask first.

It must not know: how a target is chosen, or what a level leads to.
"""

from __future__ import annotations

from typing import Any

import click

from tolariad.cli.orders import confirm, order, takes_run


@click.command()
@takes_run
@click.option("--to", metavar="ID", help="This checkpoint; `tolaria checkpoints` lists them.")
@click.option("--epoch", type=click.IntRange(min=0), help="The newest checkpoint at or before the end of this epoch.")
@click.option("--step", type=click.IntRange(min=0), help="The newest checkpoint at or before this step.")
@click.option("--tier", type=click.Choice(["fast", "full"]), help="From a snapshot in memory, or from disk.")
@click.option("--yes", is_flag=True, help="Do not ask.")
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
    """Go back to a checkpoint; without a target, to the newest promoted one. What was trained behind it is abandoned."""
    if sum(one is not None for one in (to, epoch, step)) > 1:
        raise click.UsageError("--to, --epoch and --step each name a target: give one of them")
    if to is not None and not to.strip():
        # As an unset variable in a script gives it: that is nobody's word for "the newest promoted one".
        raise click.UsageError("--to names a checkpoint, and this is empty; leave it out for the newest promoted one")
    if not yes:
        confirm("Go back? The steps behind the checkpoint will be abandoned (they stay in the journal).")
    return order(context, "Rollback", given, to=to, epoch=epoch, step=step, tier=tier)


@click.command()
@click.argument("level", type=click.Choice(["minor", "major", "severe", "critical"], case_sensitive=False))
@takes_run
@click.option("--yes", is_flag=True, help="Do not ask.")
def emergency(context: click.Context, *, level: str, yes: bool, **given: Any) -> int:
    """Raise an emergency: MINOR is recorded, MAJOR and SEVERE go back, CRITICAL freezes the trainer at once.

    Done when that is.
    """
    if not yes and level.lower() != "minor":
        confirm(f"Raise {level.upper()}? It interrupts the training.")
    return order(context, "Emergency", given, level=level.lower())
