"""The first step of opening a journal: lock, sync, scan. It changes no segment, so a refusal changes no file.

Files are synced before they are read. Otherwise a decision could rest on bytes that a crashed process left in the page
cache, and a power cut could then remove them.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from journal.columns import Gathering, Tabulation
from journal.errors import Damage, JournalDamaged
from journal.files import Files, release_locks, take_locks
from journal.format import HEADER_BYTES, FrameKind, SegmentHeader
from journal.frame import Flaw, decode_segment_header
from journal.quarantine import set_aside
from journal.scan import ScanResult, check_link, refusal, scan
from journal.segment import SegmentName, SegmentView, Walk, closed_view, list_segments, segment_file_name
from journal.spare import SPARE_SUFFIX
from journal.tail import Decision

# How much of the segments before the newest one is read completely on opening, newest first. It takes about 0.7 s.
OLDER_BYTES_MAX: Final = 200_000_000


class RecoveryKind(enum.StrEnum):
    """The state in which the journal was found."""

    NEW = "new"  # there was no journal
    CLEAN = "clean"  # it was closed in order
    UNCLEAN = "unclean"  # its writer died between two writes
    TORN = "torn"  # its writer died, or a write failed, in the middle of a write


class Recovery(msgspec.Struct, frozen=True, kw_only=True):
    """The state that `begin` found, and its repair. The caller records it as an event; the journal does not."""

    kind: RecoveryKind
    file: Path | None = None
    offset: int = 0
    bytes_cut: int = 0
    quarantine: Path | None = None


class Found(msgspec.Struct):
    """A locked and scanned journal: its segments in order, and the end of the newest one."""

    folder: Path
    locks: Sequence[int]
    views: Sequence[SegmentView] = ()
    stop: ScanResult | None = None
    gathered: Gathering | None = None  # the rows of the newest segment, if the caller wants tables

    @property
    def last_seq(self) -> int:
        """The last sequence number in the journal, 0 if there is none."""
        return self.stop.tail.last_seq if self.stop is not None else 0

    def close_views(self) -> None:
        """Close the files that the scan opened."""
        for view in self.views:
            view.close()
        self.views = ()


def lock_and_scan(files: Files, folder: Path, tabulation: Tabulation | None = None) -> Found:
    """Lock the journal and scan its segments. Raises JournalLocked, JournalDamaged, JournalTooNew, OSError."""
    # The folder is made before the lock, because the lock is a file in it. An empty folder is harmless if opening
    # then fails.
    files.make_folder(folder)
    hint = "Stop the other process first, or read without writing."
    found = Found(folder, take_locks(files, folder, hint))
    try:
        # A writer may have crashed after it renamed a segment and before it synced the folder. After this sync the name
        # is durable, so no event is read from a segment whose name a power cut could still remove.
        files.fsync_folder(folder)  # safety: found-names-made-durable
        # List after the lock: no other writer can rename or add a segment from here on.
        # Each file is closed again: a long journal has more than a process may open.
        found.views = [closed_view(files, name) for name in list_segments(files, folder)]
        if found.views:
            # The scan reads the newest segment completely, so its rows are collected in the same pass.
            found.gathered = Gathering(tabulation) if tabulation is not None else None
            found.stop = _scan_all(found.views, found.gathered)
        _refuse_nameless(files, folder, len(found.views) + 1)  # safety: spare-with-events-refused
    except BaseException:
        found.close_views()
        # A refused start must not keep the lock: the operator repairs with another process.
        release_locks(files, found.locks)  # safety: refused-start-releases-lock
        raise
    return found


def _refuse_nameless(files: Files, folder: Path, segment_no: int) -> None:
    """Raise JournalDamaged if a spare contains events. Its rename was reported as durable, but the disk lost it.

    `begin` removes spares. A crash before the rename leaves a spare with a head and no events, which may be removed.
    """
    for name in files.names(folder):
        if not name.endswith(SPARE_SUFFIX):
            continue
        path = folder / name
        header = _head_of(files, path)
        # A spare without a readable head was never complete, and one with another number is left from an older
        # rotation.
        if isinstance(header, Flaw) or header.segment_no != segment_no:
            continue
        view = SegmentView(files, SegmentName(segment_no, header.first_seq, path))
        try:
            frames = [frame for frame in Walk(view) if frame.header.kind == FrameKind.EVENTS]
        finally:
            view.close()
        if frames:
            proper = segment_file_name(segment_no, header.first_seq)
            what = f"the file of segment {segment_no}, which contains events, has lost its name"
            hint = f"Rename it to {proper} and start again."
            raise JournalDamaged(what, damage=Damage.MISSING_SEGMENT, path=path, seq=header.first_seq, hint=hint)


def _head_of(files: Files, path: Path) -> SegmentHeader | Flaw:
    descriptor = files.open_read(path)
    try:
        # Not a SegmentView: a spare has no name that its header could agree with.
        return decode_segment_header(files.pread(descriptor, HEADER_BYTES, 0))
    finally:
        files.close(descriptor)


def check_links(views: Sequence[SegmentView]) -> None:
    """Raise unless every segment follows from the one before it, and every older one has its full length."""
    for previous, view in zip([None, *views[:-1]], views, strict=True):
        try:
            check_link(previous, view)
        except JournalDamaged:
            if previous is not None:
                # Scan the predecessor from its first frame on. If it is damaged, the error is then the same as that of
                # readers and `verify`, and not only a broken link.
                _refuse_damaged(previous, view)
            raise
        # An older segment is not read completely here. A wrong length shows lost or added bytes without reading them.
        if previous is not None and previous.size != previous.header.segment_bytes:  # safety: older-file-has-its-length
            _refuse_damaged(previous, view)
        if previous is not None:
            previous.close()


def _refuse_damaged(view: SegmentView, successor: SegmentView) -> None:
    """Raise an error if an older segment cannot be read to the end that its successor names."""
    # Frames after this point belong to a failed write that the successor has declared void.
    view.limit = successor.header.previous_length
    stop = scan(view, successor)
    view.close()
    successor.close()
    if stop.decision is not Decision.END:  # safety: older-damage-refuses-start
        raise refusal(view, stop)


def _scan_all(views: Sequence[SegmentView], gathered: Gathering | None) -> ScanResult:
    # Sync every segment before any of it is read: the page cache may hold bytes of a crashed writer that are not on
    # disk.
    for view in views:
        view.sync()  # safety: found-bytes-made-durable
        view.close()
    check_links(views)  # safety: links-checked-at-start
    # Scan the newest segment first: a crash leaves its traces there, so it is the most likely reason to refuse.
    newest = views[-1]
    stop = scan(newest, heed=gathered.add_frame if gathered is not None else None)
    # A torn end is no reason to refuse: its frame was never acknowledged, and `recover` cuts it off.
    if stop.decision not in (Decision.END, Decision.TORN):  # safety: damage-refuses-start
        raise refusal(newest, stop)
    _scan_older(views)  # safety: older-segments-read
    return stop


def _scan_older(views: Sequence[SegmentView]) -> None:
    scanned_bytes = 0
    for view, successor in zip(reversed(views[:-1]), reversed(views), strict=False):
        scanned_bytes += view.size
        if scanned_bytes > OLDER_BYTES_MAX:
            # The rest is checked by its headers and links only, so that opening does not take longer as a journal
            # grows. A fold or `verify` reads it all.
            return
        _refuse_damaged(view, successor)


def recover(files: Files, found: Found) -> Recovery:
    """Do the second step, before writing: move a torn tail to the quarantine folder. Raises OSError."""
    if found.stop is None:
        return Recovery(kind=RecoveryKind.NEW)
    # Only the newest segment can be torn; `lock_and_scan` has refused everything else.
    stop, view = found.stop, found.views[-1]
    place = stop.tail.offset
    if stop.decision is Decision.END:
        clean = stop.tail.last_kind == FrameKind.WATERMARK
        # Without a watermark the writer died between two writes. No event is lost, but the run must know that it was
        # a crash.
        return Recovery(kind=RecoveryKind.CLEAN if clean else RecoveryKind.UNCLEAN, file=view.path, offset=place)
    # Copy before cutting: if the classification was wrong, the bytes still exist.
    copy = set_aside(files, view.name, place, stop.nonzero_end)
    cut = stop.nonzero_end - place
    return Recovery(kind=RecoveryKind.TORN, file=view.path, offset=place, bytes_cut=cut, quarantine=copy)
