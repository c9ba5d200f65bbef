"""`tolaria checkpoints`: the checkpoints of a run, in its journal and on disk."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tolariad.cli import naming, output, runs
from tolariad.cli.errors import CommandError, Exit
from tolariad.cli.long_work import bar
from tolariad.core import queries as q
from tolariad.core.calc.text.plain import rfc3339
from tolariad.forensics.words import safe
from tolariad.storage.manifest import FILE_NAME
from tolariad.storage.verify import CheckpointUnusable, verify

if TYPE_CHECKING:
    from tolariad.core import state as st
    from tolariad.core.state.run_state import RunState


@click.command()
@naming.argument
@click.option("--verify", "verified", is_flag=True, help="Check the hash of every file. Exit 1 if one differs.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines.")
@naming.takes_journal
def checkpoints(journal: Path, *, verified: bool, as_json: bool) -> int:
    """List the committed checkpoints of RUN, oldest first."""
    with bar("folding the journal"):
        state = runs.folded(journal)
    pins = q.pinned_checkpoints(state.checkpoints, state.run.policy.keep_last, state.rollbacks.wanted)
    folder = journal.parent / "checkpoints"
    rows = []
    with bar("verifying", 0, len(state.checkpoints.catalogue)) as at:
        for number, entry in enumerate(state.checkpoints.catalogue):
            at(number)
            found = _check(folder / entry.id, entry, verified=verified)
            rows.append({**_row(entry), "pinned": pins.get(entry.id), **found})
    output.put_rows(rows, ("ID", "REASON", "STEP", "NEXT", "SIZE", "AGE", "STATE"), _cells, as_json=as_json)
    if not as_json:
        _put_notes(rows, state)
    # A rejected checkpoint is known to be damaged and is never used.
    bad = verified and any(row["verified"] is False and not row["rejected"] for row in rows)
    return Exit.NO if bad else Exit.DONE


def _put_notes(rows: list[dict[str, Any]], state: RunState) -> None:
    for row in rows:
        if row["verified"] is False and row["present"]:
            output.note(safe(f"{row['id']}: {row['problem']}"))
    held, quota = state.checkpoints, state.run.policy.quota
    if not rows:
        output.note("the run has no checkpoint yet")
    elif held.removed or held.exhausted:
        more = "; the checkpoints that must be kept exceed the quota" if held.exhausted else ""
        used = f"{output.size(q.used_bytes(held))} of {output.size(quota)} used"
        output.put(f"{held.removed} removed so far; {used}{more}")


def _row(entry: st.CatalogueEntry) -> dict[str, Any]:
    """Return what the journal records. `epoch` and `batch` are the next to be trained."""
    copied = ("step", "epoch", "batch", "branch", "size", "manifest", "rejected", "abandoned", "promoted")
    return {
        "id": entry.id,
        "reason": entry.reason.value,
        **{name: getattr(entry, name) for name in copied},
        "time": rfc3339(entry.wall),
        "age_s": max(0.0, time.time() - entry.wall / 1e9),
        "unfit": bool(entry.unfit_context),
        "quarantined": entry.quarantined or None,
        "removing": entry.condemned,
        "statistics_only": entry.reduced,
    }


def _check(folder: Path, entry: st.CatalogueEntry, *, verified: bool) -> dict[str, Any]:
    """Return whether the checkpoint is on disk and, with `verified`, whether every byte there is what was written."""
    try:
        present = (folder / FILE_NAME).is_file()
        problem = None if present else "is not on disk"
    except OSError as error:
        present, problem = False, str(error.strerror)
    if present and verified:
        try:
            verify(folder, entry.manifest)
        except CheckpointUnusable as error:
            problem = str(error)
    return {"present": present, "verified": problem is None if verified else None, "problem": problem}


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
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
        output.age(row["age_s"]),
        ", ".join(words),
    )


def wanted(checkpoints: st.Checkpoints, id_: str | None, code: int = Exit.NO) -> st.CatalogueEntry:
    """Return the committed checkpoint with this id, `best` or `last`; None: `last`, the newest that is usable.

    Raises CommandError with `code`.
    """
    if id_ in (None, "last"):
        found = checkpoints.newest
    else:
        id_ = checkpoints.best if id_ == "best" else id_
        found = next((entry for entry in checkpoints.catalogue if entry.id == id_), None)
    if found is not None:
        return found
    if id_ == "":
        hint = "`keep_best: METRIC` in the configuration keeps that of the best epoch; `last` is the newest checkpoint"
        raise CommandError(code, "the run has no best checkpoint", hint=hint, name="NoCheckpoint")
    newest = ", ".join(entry.id for entry in checkpoints.catalogue[-5:])
    hint = f"the newest are {newest}" if newest else "the run has no checkpoint yet"
    what = (
        f"there is no committed checkpoint {id_!r}" if id_ not in (None, "last") else "the run has no usable checkpoint"
    )
    raise CommandError(code, what, hint=hint, name="NoCheckpoint")
