"""Repair a journal by giving up events, if acknowledged frames are damaged and no copy of them exists.

The caller must ask for this repair explicitly, and it is planned first. It cuts everything from the first damaged frame
on. That includes later frames that are still readable: without the events in between they belong to no state. The
originals are kept in the quarantine folder. In place of the first lost frame the repair writes one event of the caller,
which says what was lost. The event is in the file before the file gets its name. So no crash leaves a journal that can
be continued without it.

Order: copy the damaged segment to the quarantine folder. Write a shorter segment under a temporary name (the frames
before the damage, the event, zeros) and sync it. Rename it over the damaged one. Move the later segments to the
quarantine folder, the last one first. After a crash in between, the journal refuses to open, as before, and the same
repair completes the work.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from journal.direct import FrameBuffer
from journal.errors import BatchRefused, JournalError
from journal.files import Files, write_all
from journal.format import FrameKind, SegmentHeader
from journal.frame import Flaw, array_head, frame_bytes
from journal.locate import last_frame_start
from journal.packed import is_packed
from journal.quarantine import QUARANTINE, copy_aside
from journal.records import entries_of
from journal.scan import check_link
from journal.segment import SegmentName, SegmentView, Tail, Walk, named_segments, segment_file_name
from journal.spare import SPARE_SUFFIX
from journal.writing import Batch, Stamp, compose

_PIECE_BYTES: Final = 1 << 20
_CLOSING: Final = (FrameKind.STEP_TABLE, FrameKind.SEAL)


class Loss(msgspec.Struct, frozen=True, kw_only=True):
    """The acknowledged events that a repair would lose, or has lost: `first_seq` to `last_seq`, as far as is known."""

    first_seq: int
    last_seq: int  # at least up to this one; 0 if nothing after the damage can be read
    file: Path  # the segment in which the damage begins
    offset: int
    segments: int  # how many later segments are moved away as a whole


class Cut(NamedTuple):
    """A place at which a journal can be cut: the last good segment, its good end, and all later segments."""

    view: SegmentView
    tail: Tail
    later: Sequence[SegmentName]


def find_cut(folder: Path, files: Files) -> Cut | None:
    """Return the end of the frames that verify from the beginning on, or None if the first segment's head does not."""
    names = named_segments(files, folder)
    cut: Cut | None = None
    # Every link is checked on the way. The cut must be the end of one unbroken chain from the first event.
    view = _following(files, names, 0, None)
    for place in range(len(names)):
        if view is None:
            break
        following = _following(files, names, place + 1, view)
        try:
            view.limit = following.header.previous_length if following is not None else None
            tail, end = _good_end(view)
        finally:
            view.close()
            if following is not None:
                following.close()
        if tail is None:
            break
        cut = Cut(view, tail, names[place + 1 :])
        # Continue only if the segment is intact up to the end that its successor names. Otherwise events are missing.
        view = following if end == view.limit else None
    return cut


def _following(
    files: Files, names: Sequence[SegmentName], place: int, before: SegmentView | None
) -> SegmentView | None:
    """Return the segment at an index if it exists, its header verifies, and it follows the segment `before`."""
    if place >= len(names) or names[place].segment_no != place + 1:
        return None
    view = None
    try:
        view = SegmentView(files, names[place])
        check_link(before, view)
    except JournalError:
        if view is not None:
            view.close()
        return None
    return view


def _good_end(view: SegmentView) -> tuple[Tail | None, int]:
    """Return the tail after the last good frame that does not close the segment, and the offset where reading ends.

    The tail is None if not even the segment's head verifies.
    """
    walk, good = Walk(view), None
    # Not the walk's own loop: the tail before the closing frames is needed, and an undecodable body ends the loop.
    while not isinstance(frame := walk.check(), Flaw):
        if frame.header.kind == FrameKind.EVENTS:
            try:
                entries_of(view, frame, 0)
            except JournalError:
                break
        walk.tail.advance(frame.header, frame.chain, view.alignment)
        if frame.header.kind not in (*_CLOSING, FrameKind.POISON):  # safety: closing-frames-cut
            # A table or a seal is left out: the repaired segment takes more frames, and no frame may follow a seal.
            good = msgspec.structs.replace(walk.tail, index=[])
    return good, walk.tail.offset


def loss_of(cut: Cut, files: Files) -> Loss | None:
    """Return what a cut there would lose, or None if it would lose no event (the damage is then of another kind)."""
    last = _last_known(cut, files)
    # No event comes after the cut: the damage is in a table, a seal or padding, and cutting would only hide it.
    if last < cut.tail.next_seq and not cut.later:  # safety: no-loss-without-lost-event
        return None
    return Loss(
        first_seq=cut.tail.next_seq,
        last_seq=last if last >= cut.tail.next_seq else 0,
        file=cut.view.path,
        offset=cut.tail.offset,
        segments=len(cut.later),
    )


def _last_known(cut: Cut, files: Files) -> int:
    """Return the highest sequence number found after the cut, in any intact header or file name."""
    # The newest segment has the highest number. If it cannot be read, try the one before it, then the names.
    for name in reversed(cut.later):
        with contextlib.suppress(JournalError, OSError):
            view = SegmentView(files, name)
            try:
                walk = Walk(view, last_frame_start(view))
                for _ in walk:
                    continue
            finally:
                view.close()
            return walk.tail.last_seq
    highest = max((name.first_seq - 1 for name in cut.later), default=0)
    view, alignment = cut.view, cut.view.alignment
    try:
        for offset in range(cut.tail.offset, min(view.size, view.header.segment_bytes), alignment):
            header = view.header_at(offset)
            if not isinstance(header, Flaw):
                highest = max(highest, header.last_seq)
            elif not any(view.read(offset, alignment)) and not any(view.read(offset, _PIECE_BYTES)):
                break  # only zeros: nothing was written from here on
    finally:
        view.close()
    return highest


def lose(folder: Path, files: Files, cut: Cut, loss: Loss, event: Callable[[Loss], bytes]) -> Path:
    """Cut the journal at `cut` and write the event that `event` returns in place of the lost ones. Needs the lock.

    Return the folder with the originals. Raises OSError, BatchRefused.
    """
    # On the same file system as the journal: segments are moved there by a rename, which copies nothing and is
    # atomic.
    aside = _new_folder(files, folder / QUARANTINE)
    proper = folder / segment_file_name(cut.view.name.segment_no, cut.view.name.first_seq)
    # The copy is durable, with its name, before anything is replaced: at every moment one whole copy of the damaged
    # segment exists.
    copy_aside(files, cut.view.path, aside / cut.view.path.name)  # safety: damaged-segment-copied
    files.fsync_folder(aside)  # safety: copy-name-durable
    # The suffix of spares: after a crash the next start removes this file.
    fresh = folder / f"repair-{proper.stem}{SPARE_SUFFIX}"
    if fresh.name in files.names(folder):
        files.unlink(fresh)
    _write_cut(files, cut, fresh, event(loss))
    # Sync this rename before the later segments are moved. If their moves reached the disk first, a power cut could
    # leave the damaged segment as the newest one. Its damage could then look like a torn write, which a start cuts
    # silently.
    files.rename(fresh, proper)
    files.fsync_folder(folder)  # safety: shorter-segment-name-durable
    if is_packed(cut.view.path):
        # Its copy is in the quarantine folder. Readers already prefer the unpacked file, so a crash here is harmless.
        files.unlink(cut.view.path)
    for name in reversed(cut.later):
        # The last one first: after a crash the segments that remain still follow each other without a gap.
        files.rename(name.path, aside / name.path.name)
    files.fsync_folder(aside)
    files.fsync_folder(folder)
    return aside


def _new_folder(files: Files, quarantine: Path) -> Path:
    # A folder of its own for each repair: an earlier one's originals are never overwritten.
    for number in itertools.count(1):
        folder = quarantine / f"lost-{number}"
        try:
            is_taken = bool(files.names(folder))
        except FileNotFoundError:
            is_taken = False
        if not is_taken:
            break
    files.make_folder(folder)
    return folder


def _write_cut(files: Files, cut: Cut, fresh: Path, event: bytes) -> None:
    view, tail, header = cut.view, cut.tail, cut.view.header
    frame = _event_frame(header, tail, event)
    if tail.offset + len(frame) > header.segment_bytes:  # safety: gap-event-fits
        # Raise before any file changes: the journal is then as damaged as before, and nothing is lost.
        raise BatchRefused("there is no room left for the event that says what is lost", path=view.path)
    descriptor = files.create(fresh)
    try:
        # Zeros to the full length, as in a new segment: the rules for a torn end then hold for the repaired one too.
        for at in range(0, header.segment_bytes, _PIECE_BYTES):
            length = min(_PIECE_BYTES, header.segment_bytes - at)
            kept = view.read(at, min(length, max(0, tail.offset - at)))
            write_all(files, descriptor, kept.ljust(length, b"\0"), at)
        write_all(files, descriptor, frame, tail.offset)  # safety: gap-told-before-rename
        files.fsync(descriptor)
    finally:
        files.close(descriptor)
        view.close()


def _event_frame(header: SegmentHeader, tail: Tail, event: bytes) -> bytes:
    # The event gets the labels of the last good frame, so that searching by step still works.
    last = tail.last
    stamp = Stamp(last.epoch if last else 0, last.step if last else 0, time.time_ns(), time.monotonic_ns())
    body = array_head(1) + event
    room = FrameBuffer().room(frame_bytes(len(body), header.alignment))
    length, _, _ = compose(room, header, tail, Batch(int(FrameKind.EVENTS), 1, body), stamp)
    return bytes(room[:length])
