"""Find the checkpoint of another run that a new run starts from (`--from RUN[@ID]`), or its file (`--init FILE`).

Promises: the other run is only read, so it may be live. The result names its run id, its checkpoint and the hash that
the checkpoint's manifest must have; the new run records it.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from journal import JournalError, Reader
from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.core.calc.run.exits import EXIT_CONFIG, EXIT_DAMAGED, EXIT_IO, EXIT_USAGE
from tolariad.core.state.replay import ReplayError
from tolariad.core.state.run_state import RunState
from tolariad.daemon.request import From, RunRequest, StartRefused, refusing
from tolariad.forensics.moment import state_at


def asked_for(request: RunRequest) -> m.Parent | None:
    """Return where a new run begins, if the request says it. Raises StartRefused."""
    if request.init is not None:
        return m.Parent(run_id="", checkpoint="", manifest=request.init.hash, folder="", file=request.init.file)
    return find(request.begin_from) if request.begin_from is not None else None


def find(asked: From) -> m.Parent:
    """Find the checkpoint in the other run's journal. Raises StartRefused."""
    folder = asked.folder.absolute()
    journal = folder / "journal"
    if not journal.is_dir():
        raise StartRefused(EXIT_USAGE, f"--from: {folder} contains no run. `tolaria list` shows the existing runs")
    what = f"--from: the journal of {folder} cannot be read"
    with (
        refusing(EXIT_IO, what, OSError),
        refusing(EXIT_DAMAGED, what, JournalError, ReplayError, msgspec.DecodeError),
        Reader(journal) as reader,
    ):
        state = state_at(reader).state
    entry = _entry(state, asked.id, folder)
    return m.Parent(
        run_id=state.run.run_id,
        checkpoint=entry.id,
        manifest=entry.manifest,
        folder=str(folder),
        with_optimizer=asked.with_optimizer,
    )


def _entry(state: RunState, id_: str, folder: Path) -> st.CatalogueEntry:
    known = [one for one in state.checkpoints.catalogue if not one.rejected]
    found = next((one for one in reversed(known) if id_ in ("", one.id)), None)
    if found is not None:
        return found
    newest = ", ".join(one.id for one in known[-5:])
    what = f"no usable checkpoint {id_}" if id_ else "no usable checkpoint yet"
    raise StartRefused(EXIT_USAGE, f"--from: {folder} has {what}" + (f"; the newest are {newest}" if newest else ""))


def require_same(request: RunRequest, state: RunState) -> None:
    """Accept --from and --init for an existing run only if they repeat that run's own. Raises StartRefused."""
    began, asked, init = state.run.parent, request.begin_from, request.init
    if init is not None and (began is None or began.file != init.file):
        how = f"it began with the weights of {began.words}" if began is not None else "it exists"
        why = f"--init needs a new run, and {how}; start another one with --dir"
    elif init is not None or asked is None:
        return
    elif began is None:
        why = "--from needs a new run, and this run exists; start another one with --dir"
    elif began.file:
        why = f"this run was started with --init {began.file}; start another one with --dir"
    elif (str(asked.folder.absolute()), asked.with_optimizer) != (began.folder, began.with_optimizer) or (
        asked.id not in ("", began.checkpoint)
    ):
        optimizer = " --with-optimizer" if began.with_optimizer else ""
        why = f"this run was started with --from {began.folder}@{began.checkpoint}{optimizer}; start another with --dir"
    else:
        return
    raise StartRefused(EXIT_CONFIG, why)
