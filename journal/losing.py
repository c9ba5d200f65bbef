"""The repair that loses events: where acknowledged frames are damaged and no copy is left, going on from before them.

It is asked for explicitly and planned first. What is cut is everything from the first damaged frame on, also what lies
behind it and could still be read: without the events between, it belongs to no state. The originals are kept in the
quarantine folder. In the place of the first lost frame comes one event of the caller's, which says what was lost; it is in
the file before the file gets its name, so no crash lets anybody go on from there without it.

Order: copy the damaged segment aside; make its successor beside it (the frames before the damage, the event, zeros) and
sync it; rename it over the damaged one; move the segments behind it aside, the last one first. A crash in between leaves a
journal that refuses to be opened, as before, and the same repair ends the work.
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
    """What a repair would lose, or has lost: acknowledged events `first_seq` to `last_seq`, as far as can be told."""

    first_seq: int
    last_seq: int  # at least so many; 0 where nothing behind the damage can be read
    file: Path  # the segment in which it begins
    offset: int
    segments: int  # how many whole segments behind it are set aside too


class Cut(NamedTuple):
    """Where a journal can be cut: the last good segment, its good end, and everything behind it."""

    view: SegmentView
    tail: Tail
    behind: Sequence[SegmentName]


def find_cut(folder: Path, files: Files) -> Cut | None:
    """The end of what verifies from the beginning on. None where not even the first segment's head does."""
    names = named_segments(files, folder)
    cut: Cut | None = None
    view = _following(files, names, 0, None)
    for place in range(len(names)):
        if view is None:
            break
        following = _following(files, names, place + 1, view)
        view.limit = following.header.previous_length if following is not None else None
        tail, end = _good_end(view)
        view.close()
        if tail is None:
            break
        cut = Cut(view, tail, names[place + 1 :])
        # Only a segment that is whole up to where its successor says that it ends has anything good behind it.
        view = following if end == view.limit else None
    return cut


def _following(
    files: Files, names: Sequence[SegmentName], place: int, before: SegmentView | None
) -> SegmentView | None:
    """The segment at a place if it is there, its header verifies, and it follows from the one before."""
    if place >= len(names) or names[place].segment_no != place + 1:
        return None
    try:
        view = SegmentView(files, names[place])
        check_link(before, view)
    except JournalError:
        return None
    return view


def _good_end(view: SegmentView) -> tuple[Tail | None, int]:
    """The tail behind the last good frame that does not close the segment, None without a head; and where reading ends."""
    walk, good = Walk(view), None
    # Not the walk's own loop: the tail before the closing frames is wanted, and what its caller would raise ends it.
    while not isinstance(frame := walk.look(), Flaw):
        if frame.header.kind == FrameKind.EVENTS:
            try:
                entries_of(view, frame, 0)
            except JournalError:
                break
        walk.tail.advance(frame.header, frame.chain, view.alignment)
        if frame.header.kind not in (*_CLOSING, FrameKind.POISON):
            good = msgspec.structs.replace(walk.tail, index=[])
    return good, walk.tail.offset


def loss_of(cut: Cut, files: Files) -> Loss | None:
    """What cutting there loses; None where it would lose nothing (the damage is then of another kind)."""
    last = _last_known(cut, files)
    if last < cut.tail.next_seq and not cut.behind:
        return None
    return Loss(
        first_seq=cut.tail.next_seq,
        last_seq=last if last >= cut.tail.next_seq else 0,
        file=cut.view.path,
        offset=cut.tail.offset,
        segments=len(cut.behind),
    )


def _last_known(cut: Cut, files: Files) -> int:
    """The highest sequence number that anything behind the cut speaks of."""
    for name in reversed(cut.behind):
        with contextlib.suppress(JournalError, OSError):
            view = SegmentView(files, name)
            walk = Walk(view, last_frame_start(view))
            for _ in walk:
                continue
            view.close()
            return walk.tail.last_seq
    highest = max((name.first_seq - 1 for name in cut.behind), default=0)
    view, alignment = cut.view, cut.view.alignment
    for offset in range(cut.tail.offset, min(view.size, view.header.segment_bytes), alignment):
        header = view.header_at(offset)
        if not isinstance(header, Flaw):
            highest = max(highest, header.last_seq)
        elif not any(view.read(offset, alignment)) and not any(view.read(offset, _PIECE_BYTES)):
            break  # zeros: nothing was written from here on
    view.close()
    return highest


def lose(folder: Path, files: Files, cut: Cut, loss: Loss, event: Callable[[Loss], bytes]) -> Path:
    """Cut the journal there, and put the event that `event` makes in the place of what is lost. Needs the lock.

    Returns the folder that has the originals. Raises OSError, BatchRefused.
    """
    aside = _new_folder(files, folder / QUARANTINE)
    proper = folder / segment_file_name(cut.view.name.segment_no, cut.view.name.first_seq)
    copy_aside(files, cut.view.path, aside / cut.view.path.name)
    files.fsync_folder(aside)
    fresh = folder / f"repair-{proper.stem}{SPARE_SUFFIX}"
    if fresh.name in files.names(folder):
        files.unlink(fresh)
    _write_cut(files, cut, fresh, event(loss))
    files.rename(fresh, proper)
    files.fsync_folder(folder)
    if is_packed(cut.view.path):
        files.unlink(cut.view.path)  # its copy lies aside; from here on the unpacked one counts in any case
    for name in reversed(cut.behind):
        files.rename(name.path, aside / name.path.name)
    files.fsync_folder(aside)
    files.fsync_folder(folder)
    return aside


def _new_folder(files: Files, quarantine: Path) -> Path:
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
    if tail.offset + len(frame) > header.segment_bytes:
        raise BatchRefused("there is no room left for the event that says what is lost", path=view.path)
    descriptor = files.create(fresh)
    try:
        for at in range(0, header.segment_bytes, _PIECE_BYTES):
            length = min(_PIECE_BYTES, header.segment_bytes - at)
            kept = view.read(at, min(length, max(0, tail.offset - at)))
            write_all(files, descriptor, kept.ljust(length, b"\0"), at)
        write_all(files, descriptor, frame, tail.offset)
        files.fsync(descriptor)
    finally:
        files.close(descriptor)
        view.close()


def _event_frame(header: SegmentHeader, tail: Tail, event: bytes) -> bytes:
    last = tail.last
    stamp = Stamp(last.epoch if last else 0, last.step if last else 0, time.time_ns(), time.monotonic_ns())
    body = array_head(1) + event
    room = FrameBuffer().room(frame_bytes(len(body), header.alignment))
    length, _, _ = compose(room, header, tail, Batch(int(FrameKind.EVENTS), 1, body), stamp)
    return bytes(room[:length])
