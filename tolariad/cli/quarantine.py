"""`tolaria quarantine add|remove|list`: batches, checkpoints and seeds that the run must not use again."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import click

from tolariad.cli import naming, output, runs
from tolariad.cli.errors import Exit
from tolariad.cli.orders import Parameters, sends, takes_run
from tolariad.forensics.words import safe

_BATCHES: Final = re.compile(r"([0-9]{1,100}):([0-9]{1,100})(?:-([0-9]{1,100}))?")


@click.group(cls=naming.RunGroup, usual="list")
def quarantine(**_: object) -> None:
    """Keep batches, checkpoints or seeds from being used.

    The run skips a batch in quarantine, does not roll back to such a checkpoint, and culls such a seed.
    Without a command, list what is in quarantine.
    """


@quarantine.command()
@takes_run
@sends("QuarantineAdd")
@click.option("--batch", metavar="EPOCH:FIRST[-LAST]", help="Batches of one epoch, counted from 1.")
@click.option("--checkpoint", metavar="ID", help="A checkpoint; `tolaria checkpoints RUN` lists them.")
@click.option("--seed", metavar="ID", help="A seed: it is culled, and not germinated again.")
@click.option("--until", type=int, metavar="EPOCH", help="End the quarantine after this epoch.")
def add(*, batch: str | None, until: int | None, **named: str | None) -> Parameters:
    """Put batches, a checkpoint or a seed into quarantine."""
    if sum(one is not None for one in (batch, *named.values())) != 1:
        raise click.UsageError("give exactly one of --batch, --checkpoint and --seed")
    return {"batches": _read(batch) if batch is not None else None, **named, "until": until}


def _read(text: str) -> dict[str, int]:
    found = _BATCHES.fullmatch(text)
    if found is None:
        raise click.UsageError(f"--batch takes EPOCH:FIRST or EPOCH:FIRST-LAST, such as 3:17 or 3:17-20, not {text!r}")
    return {"epoch": int(found[1]), "first": int(found[2]), "last": int(found[3] or found[2])}


@quarantine.command()
@click.argument("entry")
@takes_run
@sends("QuarantineRemove")
def remove(*, entry: str) -> Parameters:
    """Remove ENTRY from quarantine, by its name, such as q0003."""
    return {"name": entry}


@quarantine.command(name="list")
@naming.argument
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines.")
@naming.takes_journal
def list_entries(journal: Path, *, as_json: bool) -> int:
    """List the entries in quarantine in RUN, oldest first."""
    entries = runs.folded(journal).quarantine.entries
    for one in entries:
        batches = one.batches
        kind = "batch" if batches is not None else "seed" if one.seed else "checkpoint"
        row = {
            "name": one.name,
            "kind": kind,
            "checkpoint": one.checkpoint or None,
            "seed": one.seed or None,
            "epoch": batches.epoch if batches is not None else None,
            "first": batches.first if batches is not None else None,
            "last": batches.last if batches is not None else None,
            "since": one.since,
            "until": one.until,
            "why": one.why,
        }
        if as_json:
            output.put_json(row)
        else:
            what = f"{kind} {one.seed or one.checkpoint}"
            if batches is not None:
                what = f"batches {batches.epoch}:{batches.first}-{batches.last}"
            until = f"  until the end of epoch {one.until}" if one.until is not None else ""
            output.put(safe(f"{one.name}  {what}  since seq:{one.since}{until}  {one.why}"))
    if not entries:
        output.note("nothing is in quarantine")
    return Exit.DONE
