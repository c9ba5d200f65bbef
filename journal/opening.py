"""The first step of opening: lock, sync, scan. It writes nothing, so a refusal leaves every file as it was.

What is found is synced before it is read, so that nothing is decided on bytes that only a crashed process's page cache
ever held.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from journal.columns import Gathering, Tabulation
from journal.errors import Damage, JournalDamaged
from journal.files import Files
from journal.format import HEADER_BYTES, FrameKind, SegmentHeader
from journal.frame import Flaw, decode_segment_header
from journal.locking import release_locks, take_locks
from journal.quarantine import set_aside
from journal.scan import Stop, check_link, refusal, scan
from journal.segment import SegmentName, SegmentView, Walk, list_segments, segment_file_name
from journal.spare import SPARE_SUFFIX
from journal.tail import Decision

# How much is read whole on opening, behind the newest segment, newest first: some two thirds of a second.
OLDER_BYTES_MAX: Final = 200_000_000


class RecoveryKind(enum.StrEnum):
    """In what state the journal was found."""

    NEW = "new"  # there was none
    CLEAN = "clean"  # closed in order
    UNCLEAN = "unclean"  # its writer died, between two writes
    TORN = "torn"  # its writer died, or failed, inside a write


class Recovery(msgspec.Struct, frozen=True, kw_only=True):
    """What `begin` found and did. The caller journals it; the journal itself writes no events."""

    kind: RecoveryKind
    file: Path | None = None
    offset: int = 0
    bytes_cut: int = 0
    quarantine: Path | None = None


class Found(msgspec.Struct):
    """A locked and scanned journal: its segments in order, and where the newest one ends."""

    folder: Path
    locks: Sequence[int]
    views: Sequence[SegmentView] = ()
    stop: Stop | None = None
    gathered: Gathering | None = None  # of the newest segment, where a table is wanted

    @property
    def last_seq(self) -> int:
        """The last sequence number in the journal, 0 if there is none."""
        return self.stop.tail.last_seq if self.stop is not None else 0

    def close_views(self) -> None:
        """Close the files that were read."""
        for view in self.views:
            view.close()
        self.views = ()


def lock_and_scan(files: Files, folder: Path, tabulation: Tabulation | None = None) -> Found:
    """Take the lock and read what is there. Raises JournalLocked, JournalDamaged, JournalTooNew, OSError."""
    files.make_folder(folder)
    hint = "Stop the other process first, or read without writing."
    found = Found(folder, take_locks(files, folder, hint))
    try:
        # A crashed writer may have renamed a segment and not lived to sync the folder. Now the name is durable, or gone.
        files.fsync_folder(folder)
        found.views = open_views(files, list_segments(files, folder))
        if found.views:
            found.gathered = Gathering(tabulation) if tabulation is not None else None
            found.stop = _scan_all(found.views, found.gathered)
        _refuse_nameless(files, folder, len(found.views) + 1)
    except BaseException:
        found.close_views()
        release_locks(files, found.locks)
        raise
    return found


def _refuse_nameless(files: Files, folder: Path, segment_no: int) -> None:
    """Raise JournalDamaged if a spare holds events: its rename was reported as done, and the disk has forgotten it.

    Spares are removed when the journal is begun. A crash before the rename leaves one with a head and nothing behind it.
    """
    for name in files.names(folder):
        if not name.endswith(SPARE_SUFFIX):
            continue
        path = folder / name
        header = _head_of(files, path)
        if isinstance(header, Flaw) or header.segment_no != segment_no:
            continue
        view = SegmentView(files, SegmentName(segment_no, header.first_seq, path))
        frames = [frame for frame in Walk(view) if frame.header.kind == FrameKind.EVENTS]
        view.close()
        if frames:
            proper = segment_file_name(segment_no, header.first_seq)
            what = f"segment {segment_no}, with events in it, has lost its name"
            hint = f"Rename it to {proper} and start again."
            raise JournalDamaged(what, damage=Damage.MISSING_SEGMENT, path=path, seq=header.first_seq, hint=hint)


def _head_of(files: Files, path: Path) -> SegmentHeader | Flaw:
    descriptor = files.open_read(path)
    try:
        return decode_segment_header(files.pread(descriptor, HEADER_BYTES, 0))
    finally:
        files.close(descriptor)


def open_views(files: Files, names: Sequence[SegmentName]) -> list[SegmentView]:
    """Read the headers of segments. Their files are closed again: a long journal has more than a process may open."""
    views = []
    for name in names:
        view = SegmentView(files, name)
        view.close()
        views.append(view)
    return views


def check_links(views: Sequence[SegmentView]) -> None:
    """Raise unless every segment follows from the one before it, and every older one has its full length."""
    for previous, view in zip([None, *views[:-1]], views, strict=True):
        try:
            check_link(previous, view)
        except JournalDamaged:
            if previous is not None:
                # By its frames, from the first on: then it is said as readers and `verify` say it.
                _refuse_damaged(previous, view)
            raise
        if previous is not None and previous.size != previous.header.segment_bytes:
            _refuse_damaged(previous, view)
        if previous is not None:
            previous.close()


def _refuse_damaged(view: SegmentView, successor: SegmentView) -> None:
    """Raise what stands in the way of reading an older segment to its end, if anything does."""
    view.limit = successor.header.previous_length
    stop = scan(view, successor)
    view.close()
    successor.close()
    if stop.decision is not Decision.END:
        raise refusal(view, stop)


def _scan_all(views: Sequence[SegmentView], gathered: Gathering | None) -> Stop:
    for view in views:
        view.sync()
        view.close()
    check_links(views)
    # The newest first: it is where a crash shows, and the most likely reason to refuse.
    newest = views[-1]
    stop = scan(newest, heed=gathered.add_frame if gathered is not None else None)
    if stop.decision not in (Decision.END, Decision.TORN):
        raise refusal(newest, stop)
    _scan_older(views)
    return stop


def _scan_older(views: Sequence[SegmentView]) -> None:
    scanned_bytes = 0
    for view, successor in zip(reversed(views[:-1]), reversed(views), strict=False):
        scanned_bytes += view.size
        if scanned_bytes > OLDER_BYTES_MAX:
            return
        _refuse_damaged(view, successor)


def recover(files: Files, found: Found) -> Recovery:
    """The second step, for a journal that is to be written: a torn tail is set aside. Raises OSError."""
    if found.stop is None:
        return Recovery(kind=RecoveryKind.NEW)
    # Only the newest segment can be torn; `lock_and_scan` has refused everything else.
    stop, view = found.stop, found.views[-1]
    place = stop.tail.offset
    if stop.decision is Decision.END:
        clean = stop.tail.last_kind == FrameKind.WATERMARK
        return Recovery(kind=RecoveryKind.CLEAN if clean else RecoveryKind.UNCLEAN, file=view.path, offset=place)
    copy = set_aside(files, view.name, place, stop.nonzero_end)
    cut = stop.nonzero_end - place
    return Recovery(kind=RecoveryKind.TORN, file=view.path, offset=place, bytes_cut=cut, quarantine=copy)
