"""The checkpoint of another run that a new run begins from (`--from RUN[@ID]`).

Promises: the other run is only read, so it may be live; what is found is named by its run id, its checkpoint and the hash
that this one's manifest must have, and recorded with the new run. It must not know: tensors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from journal import JournalError, Reader
from tolariad.core.replay import ReplayError
from tolariad.core.vocabulary.run import Parent
from tolariad.daemon.request import EXIT_CONFIG, EXIT_DAMAGED, EXIT_IO, EXIT_USAGE, From, StartRefused
from tolariad.forensics.moment import state_at

if TYPE_CHECKING:
    from pathlib import Path

    from tolariad.core.catalogue import Entry
    from tolariad.core.state import RunState


def find(asked: From) -> Parent:
    """Look the checkpoint up in the other run's journal. Raises StartRefused."""
    folder = asked.folder.absolute()
    journal = folder / "journal"
    if not journal.is_dir():
        raise StartRefused(EXIT_USAGE, f"--from: there is no run in {folder}; `tolaria list` shows the runs there are")
    try:
        with Reader(journal) as reader:
            state = state_at(reader).state
    except (JournalError, ReplayError, msgspec.DecodeError) as error:
        raise StartRefused(EXIT_DAMAGED, f"--from: the journal of {folder} cannot be read: {error}") from error
    except OSError as error:
        raise StartRefused(EXIT_IO, f"--from: the journal of {folder} cannot be read: {error}") from error
    entry = _entry(state, asked.id, folder)
    return Parent(
        run_id=state.run.run_id,
        checkpoint=entry.id,
        manifest=entry.manifest,
        folder=str(folder),
        with_optimizer=asked.with_optimizer,
    )


def _entry(state: RunState, id_: str, folder: Path) -> Entry:
    known = [one for one in state.checkpoints.catalogue if not one.rejected]
    found = next((one for one in reversed(known) if id_ in ("", one.id)), None)
    if found is not None:
        return found
    newest = ", ".join(one.id for one in known[-5:])
    what = f"no checkpoint {id_} that may be used" if id_ else "no checkpoint yet that may be used"
    raise StartRefused(EXIT_USAGE, f"--from: {folder} has {what}" + (f"; the newest are {newest}" if newest else ""))


def require_same(asked: From, state: RunState) -> None:
    """A run that exists is what it began as; its own words, given again, change nothing. Raises StartRefused."""
    began = state.run.parent
    if began is None:
        why = "--from is for a new run, and this one was begun without; start another with --dir"
    elif (str(asked.folder.absolute()), asked.with_optimizer) != (began.folder, began.with_optimizer) or (
        asked.id not in ("", began.checkpoint)
    ):
        optimizer = " --with-optimizer" if began.with_optimizer else ""
        why = f"this run was begun --from {began.folder}@{began.checkpoint}{optimizer}; start another with --dir"
    else:
        return
    raise StartRefused(EXIT_CONFIG, why)
