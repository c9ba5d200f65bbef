"""`tolaria checkpoints`: list the checkpoints in a run's journal, and whether they are on disk."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from tolariad.cli import output, runs
from tolariad.cli.errors import Exit
from tolariad.core.checkpoints import ask as retention
from tolariad.core.plain import rfc3339
from tolariad.forensics.words import safe
from tolariad.storage.manifest import FILE_NAME
from tolariad.storage.verify import CheckpointUnusable, verify

if TYPE_CHECKING:
    from pathlib import Path

    from tolariad.core.checkpoints.catalogue_slice import CatalogueEntry
    from tolariad.core.state import RunState


@click.command()
@click.argument("run")
@click.option("--verify", "verified", is_flag=True, help="Check the hash of every file. Exit 1 if one differs.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines.")
def checkpoints(run: str, verified: bool, as_json: bool) -> int:
    """List the committed checkpoints of RUN, oldest first."""
    journal = runs.journal_folder(run)
    state = runs.folded(journal)
    catalogue = state.checkpoints.catalogue
    pins = retention.pinned(state.checkpoints, state.run.policy.keep_last, state.rollbacks.wanted)
    check = _verified if verified else _presence
    rows = [
        {**_row(entry), "pinned": pins.get(entry.id), **check(journal.parent / "checkpoints" / entry.id, entry)}
        for entry in catalogue
    ]
    if as_json:
        for row in rows:
            output.put_json(row)
    elif rows:
        _put_table(rows)
        if state.checkpoints.removed or state.checkpoints.exhausted:
            output.put(_of_the_quota(state))
    else:
        output.note("the run has no checkpoint yet")
    # A rejected checkpoint is known to be damaged and is never used.
    bad = verified and any(row["verified"] is False and not row["rejected"] for row in rows)
    return Exit.NO if bad else Exit.DONE


def _of_the_quota(state: RunState) -> str:
    held, quota = state.checkpoints, state.run.policy.quota
    more = "; the checkpoints that must be kept exceed the quota" if held.exhausted else ""
    return f"{held.removed} removed so far; {output.size(retention.used(held))} of {output.size(quota)} used{more}"


def _row(entry: CatalogueEntry) -> dict[str, Any]:
    """Return what the journal records. `epoch` and `batch` are the next to be trained."""
    return {
        "id": entry.id,
        "reason": entry.reason.value,
        "step": entry.step,
        "epoch": entry.epoch,
        "batch": entry.batch,
        "branch": entry.branch,
        "size": entry.size,
        "time": rfc3339(entry.wall),
        "age_s": max(0.0, time.time() - entry.wall / 1e9),
        "manifest": entry.manifest,
        "rejected": entry.rejected,
        "unfit": bool(entry.unfit_context),
        "abandoned": entry.abandoned,
        "quarantined": entry.quarantined or None,
        "promoted": entry.promoted,
        "removing": entry.condemned,
        "statistics_only": entry.reduced,
    }


def _presence(folder: Path, _: CatalogueEntry) -> dict[str, Any]:
    """Return whether the checkpoint is on disk, without reading it."""
    present = (folder / FILE_NAME).is_file()
    return {"present": present, "verified": None, "problem": None if present else "is not on disk"}


def _verified(folder: Path, entry: CatalogueEntry) -> dict[str, Any]:
    """Return whether every byte on disk is what was written."""
    presence = _presence(folder, entry)
    if not presence["present"]:
        return {**presence, "verified": False}
    try:
        verify(folder, entry.manifest)
    except CheckpointUnusable as error:
        return {"present": True, "verified": False, "problem": str(error)}
    return {"present": True, "verified": True, "problem": None}


def _put_table(rows: list[dict[str, Any]]) -> None:
    output.put_table([("ID", "REASON", "STEP", "NEXT", "SIZE", "AGE", "STATE"), *map(_cells, rows)])
    for row in rows:
        if row["verified"] is False and row["present"]:
            output.note(safe(f"{row['id']}: {row['problem']}"))


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    words = [word for word in ("rejected", "unfit", "abandoned", "promoted", "removing") if row[word]]
    words += [f"in quarantine ({row['quarantined']})"] if row["quarantined"] else []
    words += ["statistics only"] if row["statistics_only"] else []
    words += [f"kept: {row['pinned']}"] if row["pinned"] else []
    if not row["present"]:
        words.append("missing")
    elif row["verified"] is None:
        words.append("on disk")
    else:
        words.append("verified" if row["verified"] else "damaged")
    return (
        safe(row["id"]),
        row["reason"],
        str(row["step"]),
        f"epoch {row['epoch']} batch {row['batch'] + 1}",
        output.size(row["size"]),
        output.duration(row["age_s"]),
        ", ".join(words),
    )
