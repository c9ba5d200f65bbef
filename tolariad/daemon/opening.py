"""From a run folder to a folded state: lock, scan, replay, compare. Nothing is changed until every check has passed.

Promises: every refusal is a StartRefused with the documented exit code and a sentence that says what to do. After a
refusal the run folder is as it was before.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

import tolariad
from journal import (
    FileSystemRefused,
    Journal,
    JournalDamaged,
    JournalEntry,
    JournalError,
    JournalLocked,
    JournalTooNew,
    Mark,
    RecoveryKind,
    Tabulation,
)
from tolariad import run_files
from tolariad.boot import boot_id
from tolariad.config import require_extras
from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.core.calc.run.exits import EXIT_CONFIG, EXIT_DAMAGED, EXIT_IO, EXIT_TRY_AGAIN
from tolariad.core.calc.settings.model import JournalSettings, Settings
from tolariad.core.calc.settings.reading import ConfigError
from tolariad.core.calc.steps.table import METRIC, STEP_COLUMNS, step_row
from tolariad.core.state.replay import ReplayError, newest_usable, replay_records
from tolariad.core.state.run_state import RunState
from tolariad.daemon import changes, fresh_start, parent
from tolariad.daemon import settings as settings_of
from tolariad.daemon.request import RunRequest, StartRefused, refusing
from tolariad.daemon.settings import GIVEN_NAME, RESOLVED_NAME, Resolved
from tolariad.failpoints import reached
from tolariad.kernel import Kernel
from tolariad.storage import CheckpointUnusable, read_manifest
from tolariad.supervisor.notify import Notifier
from tolariad.supervisor.procfs import own_limits

_log: Final = logging.getLogger(__name__)

JOURNAL_NAME: Final = "journal"
# The environment variable with the effect of `journal.allow_filesystem`, for container images and tests, whose root
# is an overlay file system.
ALLOW_FILESYSTEM: Final = "TOLARIA_ALLOW_FILESYSTEM"
_EXTEND_S: Final = 30.0
_EXTEND_EVERY_S: Final = 10.0


class OpenRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that is ready to start: journal locked and scanned, state folded, configuration accepted.

    `former`: the last trainer in this folder, which may not have ended yet.
    """

    run_dir: Path
    journal: Journal
    state: RunState
    resolved: Resolved
    run_id: bytes
    boot_id: str
    facts: tuple[m.Event, ...]
    mode: m.StartMode
    former: st.Trainer = st.Trainer()

    @property
    def context_hash(self) -> bytes:
        """The last known execution context, for the journal's headers; zeros if there was none yet."""
        known = self.state.progress.environment
        return bytes.fromhex(known) if len(known) == 64 else bytes(32)


def open_run(request: RunRequest, mode: m.StartMode, notifier: Notifier) -> OpenRun:
    """Open, fold and compare. Raises StartRefused."""
    folder = request.run_dir.absolute()
    _refuse_strangers(folder)
    asked = settings_of.load(request)
    with refusing(EXIT_CONFIG, "", ConfigError):
        require_extras(asked)
    _refuse_lost_journal(folder)
    journal = _open_journal(folder, asked.journal)
    try:
        state = _fold(journal, notifier)
        if mode is not m.StartMode.ACTIVATED and fresh_start.never_trained(state):
            own = settings_of.load(request, state.run.config)
            if state.run.phase is st.Phase.FAILED or changes.differs(state, settings_of.resolve(own, 0), request):
                return _begin_anew(request, mode, own, journal, state)
        return _agree(request, mode, asked, journal, state)
    except BaseException:
        journal.close()
        raise


def _begin_anew(request: RunRequest, mode: m.StartMode, asked: Settings, journal: Journal, state: RunState) -> OpenRun:
    """Set the journal of a run that never trained aside, and open a new one."""
    folder = journal.folder.parent
    with refusing(EXIT_IO, f"the earlier attempt in {folder} cannot be set aside", OSError):
        aside = fresh_start.set_aside(folder, "checkpoints", JOURNAL_NAME)
    fresh = _open_journal(folder, asked.journal)
    try:
        # Only now: a start beside this one finds one of the two locked.
        journal.close()
        run = _agree(request, mode, asked, fresh, RunState(), began_from=state.run.parent)
    except BaseException:
        fresh.close()
        raise
    why = f". It failed: {state.run.why}" if state.run.why else ""
    note = f"the run begins anew: an earlier start never came to its first step. Its journal is in {aside}{why}"
    resolved = replace(run.resolved, notes=(*run.resolved.notes, note))
    return replace(run, resolved=resolved, former=state.trainer)


def _refuse_strangers(folder: Path) -> None:
    """Raise StartRefused if another user could change the run, or read what only this one may write to."""
    with (
        refusing(EXIT_CONFIG, "", run_files.UnsafeFolder),
        refusing(EXIT_IO, f"the run folder {folder} cannot be checked", OSError),
    ):
        run_files.require_own(folder)


def _refuse_lost_journal(folder: Path) -> None:
    """Raise StartRefused if there are checkpoints but no journal: a new journal would not know them."""
    journal, checkpoints = folder / JOURNAL_NAME, folder / "checkpoints"
    if next(journal.glob("*.wal*"), None) is None and next(checkpoints.glob("*/manifest.json"), None) is not None:
        why = (
            f"{folder} has checkpoints but no journal, so the run's history is lost. Restore {journal} from a backup, "
            "or start another run in an empty folder"
        )
        raise StartRefused(EXIT_DAMAGED, why)


def _open_journal(folder: Path, asked: JournalSettings) -> Journal:
    with (
        refusing(EXIT_IO, f"the run folder {folder} cannot be opened", JournalError, OSError),
        refusing(EXIT_DAMAGED, "", JournalDamaged, JournalTooNew),
        refusing(EXIT_CONFIG, "", FileSystemRefused),
        refusing(
            EXIT_TRY_AGAIN,
            f"another process runs {folder} (`tolaria --dir {folder} status` shows the run)",
            JournalLocked,
        ),
    ):
        run_files.make_run_folder(folder)
        for name in ("logs", "checkpoints"):
            run_files.make_folder(folder, name)
        return Journal.open(
            folder / JOURNAL_NAME,
            segment_bytes=asked.segment_bytes,
            allow_filesystem=asked.allow_filesystem or os.environ.get(ALLOW_FILESYSTEM) == "1",
            reached=reached,
            tabulation=Tabulation(STEP_COLUMNS, step_row, METRIC),
        )


def _fold(journal: Journal, notifier: Notifier) -> RunState:
    """Replay from the newest usable capture to the last durable event."""
    last_seq = journal.last_seq
    told = time.monotonic()

    def tell(seq: int) -> None:
        nonlocal told
        notifier.status(f"replaying event {seq} of {last_seq}")
        # Extend only while the replay advances: one that hangs must run into the manager's limit.
        if time.monotonic() - told >= _EXTEND_EVERY_S:
            told = time.monotonic()
            notifier.extend(_EXTEND_S)

    if last_seq:
        notifier.status(f"replaying {last_seq} events")
        notifier.extend(_EXTEND_S)
    damage = (JournalDamaged, JournalTooNew, ReplayError, msgspec.DecodeError)
    with (
        refusing(EXIT_IO, f"the journal in {journal.folder} cannot be read", JournalError, OSError),
        refusing(EXIT_DAMAGED, f"the journal in {journal.folder} cannot be folded", *damage),
    ):
        start = newest_usable(journal.captures())
        records = _with_failpoints(journal.records(start.seq))
        return replay_records(start, records, strict=True, progress=tell).state


def _with_failpoints(records: Iterator[JournalEntry | Mark]) -> Iterator[JournalEntry | Mark]:
    """Yield the records. Pass the failpoint `replay` before each, and at both ends because there may be none."""
    reached("replay")
    for record in records:
        reached("replay")
        yield record
    reached("replay")


def _agree(
    request: RunRequest,
    mode: m.StartMode,
    asked: Settings,
    journal: Journal,
    state: RunState,
    *,
    began_from: m.Parent | None = None,
) -> OpenRun:
    """Compare configurations, or create the new run's identity. Only after that write the two files.

    `began_from`: where a new run begins if the request does not say it.
    """
    folder = journal.folder.parent
    is_new = state.seq == 0
    if not is_new and not request.accept_config:
        asked = settings_of.load(request, state.run.config)
    resolved = settings_of.resolve(asked, None if is_new else state.run.rng_seed, state.run.config)
    run_id = journal.run_id or secrets.token_bytes(16)
    boot = boot_id()
    facts: list[m.Event] = []
    if is_new:
        began_from = parent.asked_for(request) or began_from
        facts.append(_run_started(folder, resolved, run_id, began_from))
    else:
        parent.require_same(request, state)
    facts.append(_daemon_started(boot, request, activated=mode is m.StartMode.ACTIVATED))
    changed = None if is_new else changes.at_start(state, resolved, request, mode)
    if changed is not None:
        facts.append(changed)
        notes = (changes.note(changed), changes.about_end(state, resolved, changed))
        if mode is not m.StartMode.ACTIVATED:
            resolved = replace(resolved, notes=(*resolved.notes, *filter(None, notes)))
    with refusing(EXIT_IO, f"the configuration cannot be written into {folder}", OSError):
        write_configuration(request, folder, resolved)
    return OpenRun(
        run_dir=folder,
        journal=journal,
        state=state,
        resolved=resolved,
        run_id=run_id,
        boot_id=boot,
        facts=tuple(facts),
        mode=mode,
        former=state.trainer,
    )


def _run_started(folder: Path, resolved: Resolved, run_id: bytes, began_from: m.Parent | None) -> m.RunStarted:
    return m.RunStarted(
        run_id=run_id.hex(),
        name=folder.name,
        task=resolved.settings.task or "",
        rng_seed=resolved.settings.rng_seed or 0,
        config=resolved.text,
        config_hash=resolved.hash,
        policy=resolved.policy,
        version=tolariad.__version__,
        parent=began_from.run_id if began_from else "",
        began_from=began_from,
    )


def _daemon_started(boot: str, request: RunRequest, *, activated: bool) -> m.DaemonStarted:
    return m.DaemonStarted(
        pid=os.getpid(),
        boot_id=boot,
        host=socket.gethostname(),
        version=tolariad.__version__,
        limits=own_limits(),
        activated=activated,
        accept_data=request.accept_data,
        accept_code=request.accept_code,
    )


def write_configuration(request: RunRequest, folder: Path, resolved: Resolved) -> None:
    """Write the configuration, as given and as resolved, into the run's folder. Raises OSError."""
    given = settings_of.given_text(request)
    if given is not None:
        run_files.replace_file(folder, GIVEN_NAME, given)
    run_files.replace_file(folder, RESOLVED_NAME, resolved.text.encode())


def begin(run: OpenRun, kernel: Kernel) -> tuple[m.Event, ...]:
    """Open the journal for writing and start the kernel. Return the facts for `Opened`. Raises JournalError."""
    recovery = kernel.begin(run.run_id, run.context_hash, bytes.fromhex(run.boot_id))
    kernel.start()
    if recovery.kind is not RecoveryKind.TORN:
        return run.facts
    repaired = m.JournalRecovered(
        kind=recovery.kind.value,
        file=recovery.file.name if recovery.file else "",
        offset=recovery.offset,
        bytes_cut=recovery.bytes_cut,
        quarantine=str(recovery.quarantine or ""),
    )
    return (repaired, *run.facts)


def earlier_threads(run: OpenRun) -> int | None:
    """Return the thread count of the newest checkpoint if `torch_threads` is not set: it changes the bits."""
    newest = run.state.checkpoints.newest
    if newest is None or run.resolved.settings.torch_threads is not None:
        return None
    try:
        return read_manifest(run.run_dir / "checkpoints" / newest.id, newest.manifest).torch_threads or None
    except CheckpointUnusable as error:
        # The trainer will find the same damage and record it. The thread count is then the machine's default.
        _log.warning("Checkpoint %s cannot be read for its thread count (%s); using the default.", newest.id, error)
        return None
