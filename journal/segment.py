"""Segment files: their names, their headers, and a walk over the frames of one file in order.

A `SegmentView` reads one file and writes nothing. A `Walk` goes from frame to frame and stops at the first place that
does not contain the next frame. Whether that place is the end, a torn write or damage is decided in `journal.tail`,
from facts that `journal.scan` gathers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from blake3 import blake3
from google_crc32c import value as crc32c

from journal.errors import COPIED_LIVE, RESTORE, Damage, JournalDamaged, JournalMissing, JournalTooNew
from journal.files import Files
from journal.format import (
    ALIGNMENT_MAX,
    BODY_BYTES_MAX,
    ENTRY_FIELDS,
    ENTRY_MAGIC,
    ENTRY_WHOLE_STRUCT,
    EVENTS,
    EVENTS_MAX,
    HEADER_BYTES,
    INDEX_STRIDE_BYTES,
    VERSION,
    EntryHeader,
    FrameKind,
    SegmentHeader,
    struct_of,
)
from journal.frame import CRC_AT, Flaw, Frame, decode_segment_header, first_chain, parse_entry
from journal.packed import PackedFile, PlainFile, is_packed, open_segment

# Walks read this much ahead. A larger window gains nothing: checksums and hash take longer than the copy.
_WINDOW_BYTES: Final = 256 * 1024
# Decimal, like every number that people read. 8 digits are enough for 10 petabytes of segments of 100 MB. 16 digits are
# enough for three centuries with a million events a second.
_NAME: Final = re.compile(r"(\d{8})-(\d{16})\.wal(\.zst)?")
_unpack_entry: Final = ENTRY_WHOLE_STRUCT.unpack_from
# The first bytes of every EVENTS frame of this version: magic, version, header length, kind, no flags.
_EVENTS_HEAD: Final = struct_of(ENTRY_FIELDS[:6]).pack(ENTRY_MAGIC, VERSION, HEADER_BYTES, EVENTS, 0)
_ZEROS: Final = bytes(ALIGNMENT_MAX)


class SegmentName(NamedTuple):
    """One segment file, known only by its name."""

    segment_no: int
    first_seq: int
    path: Path


def segment_file_name(segment_no: int, first_seq: int) -> str:
    """Return `NNNNNNNN-FIRSTSEQ.wal`. Names sort in the order of the journal."""
    return f"{segment_no:08d}-{first_seq:016d}.wal"


def names_in(files: Files, folder: Path) -> list[str]:
    """Return the names in a journal's folder. Raises JournalMissing if there is no such folder."""
    try:
        return files.names(folder)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise JournalMissing("there is no journal here", path=folder, hint="Give a run's journal folder.") from error


def list_segments(files: Files, folder: Path) -> list[SegmentName]:
    """Return the segments of a folder in order. Raises JournalDamaged if one is missing or misnamed, JournalMissing.

    A live writer may add segments while the folder is read. They are never taken for a gap.
    """
    names = named_segments(files, folder)
    while (gap := _gap_in(names)) is not None:
        # Reading a folder is not atomic: it may miss a name that a live writer has just added, and yet see the name
        # after it. A gap is damage only if a second reading finds the same names.
        again = named_segments(files, folder)
        if again == names:  # safety: folder-read-twice
            raise gap
        names = again
    return names


def named_segments(files: Files, folder: Path) -> list[SegmentName]:
    """Return the segments of a folder, even if one is missing. Raises JournalMissing, JournalDamaged (a name)."""
    # Every name that looks like a segment counts. A misnamed segment is then an error and not a silent gap.
    # safety: misnamed-segment-refused
    named = [_parse_name(folder, name) for name in sorted(names_in(files, folder)) if ".wal" in name]
    # After an interrupted packing a segment exists plain and packed. The plain one sorts first and is used.
    return [
        segment
        for before, segment in zip([None, *named], named, strict=False)
        if not before or before[:2] != segment[:2]
    ]


def _gap_in(names: list[SegmentName]) -> JournalDamaged | None:
    for place, segment in enumerate(names, start=1):
        if segment.segment_no != place:  # safety: missing-segment-refused
            what = f"segment {place} is missing" if segment.segment_no > place else "two files claim the same segment"
            return _missing(what, segment.path)
    if names and is_packed(names[-1].path):  # safety: newest-is-not-packed
        # Only segments with a successor are packed, so the successor of this one has been lost.
        what = f"segment {len(names) + 1} is missing: the one before it is packed"
        return _missing(what, names[-1].path)
    return None


def _missing(what: str, path: Path) -> JournalDamaged:
    return JournalDamaged(what, damage=Damage.MISSING_SEGMENT, path=path, hint=f"{RESTORE} {COPIED_LIVE}")


def _parse_name(folder: Path, name: str) -> SegmentName:
    match = _NAME.fullmatch(name)
    if match:
        return SegmentName(int(match[1]), int(match[2]), folder / name)
    hint = "If the file does not belong to the journal, move it away. If it is a renamed segment, give it its old name."
    what = "the file's name is not a name that the journal gives to a segment"
    raise JournalDamaged(what, damage=Damage.MISPLACED, path=folder / name, hint=hint)


class IndexEntry(NamedTuple):
    """One row of a seal's sparse index: a frame, and the running maxima including that frame."""

    offset: int
    first_seq: int
    wall_ns_max: int
    epoch_max: int
    step_max: int


class Tail(msgspec.Struct, kw_only=True):
    """The end of a segment's frames so far, with all values that the next frame must agree with. It advances."""

    offset: int
    next_seq: int
    chain: bytes
    inherited: tuple[int, int, int] = (0, 0, 0)  # the maxima before the segment's first frame
    previous_offset: int = 0
    last: EntryHeader | None = None
    frames: int = 0
    events: int = 0
    index: list[IndexEntry] = []
    index_due: int = 0  # the next EVENTS frame at or after this offset gets a row in the index

    @property
    def last_seq(self) -> int:
        """The last sequence number before `offset`."""
        return self.next_seq - 1

    @property
    def last_kind(self) -> int:
        """The kind of the last frame, 0 if there is none."""
        return self.last.kind if self.last is not None else 0

    @property
    def sealed(self) -> bool:
        """Whether the last frame is the seal."""
        return self.last_kind == FrameKind.SEAL

    @property
    def maxima(self) -> tuple[int, int, int]:
        """The running maxima of wall clock, epoch and step over all EVENTS frames so far. They never decrease."""
        last = self.last
        return (last.wall_ns_max, last.epoch_max, last.step_max) if last is not None else self.inherited

    def advance(self, header: EntryHeader, chain: bytes, alignment: int) -> None:
        """Move after one frame."""
        offset = header.offset
        # `aligned` is inlined below, because this runs for every frame.
        if header.kind == EVENTS:
            self.events += header.count
            if offset >= self.index_due:
                self.index_due = offset + INDEX_STRIDE_BYTES
                self.index.append(
                    IndexEntry(offset, header.first_seq, header.wall_ns_max, header.epoch_max, header.step_max)
                )
        self.offset = (offset + HEADER_BYTES + header.body_bytes + alignment - 1) & -alignment
        self.next_seq = header.first_seq + header.count
        self.chain = chain
        self.previous_offset = offset
        self.last = header
        self.frames += 1


class SegmentView:
    """One segment file, read only. `limit` is the end of its valid frames, if a successor's header gave it."""

    def __init__(self, files: Files, name: SegmentName) -> None:
        self._files = files
        self.name = name
        self.path = name.path
        self.limit: int | None = None
        self._window = b""
        self._window_at = 0
        self._file: PlainFile | None = None
        # The header at once: a view exists only of a segment whose header verified, so no caller checks it again.
        try:
            self.size = self._opened().size()
            head = self.read(0, HEADER_BYTES)
            self.header = self._checked(decode_segment_header(head))
        except BaseException:
            self.close()
            raise
        self.alignment = self.header.alignment
        # The chain starts with the header's hash, so an edited header breaks the chain at the first frame.
        self.chain = first_chain(head)

    def _checked(self, header: SegmentHeader | Flaw) -> SegmentHeader:
        seq = self.name.first_seq
        if header is Flaw.NEWER:
            hint = "Use the version of the program that wrote it, or a later one."
            raise JournalTooNew("the segment was written by a newer version", path=self.path, seq=seq, hint=hint)
        if isinstance(header, Flaw):
            what = "the segment header does not verify"
            raise JournalDamaged(what, damage=Damage.HEADER, path=self.path, offset=0, seq=seq)
        # Names give the order. A file that was copied over another one would be read in the wrong place.
        if (header.segment_no, header.first_seq) != (self.name.segment_no, seq):  # safety: file-holds-named-segment
            what = f"the file holds segment {header.segment_no} from sequence number {header.first_seq}"
            raise JournalDamaged(what, damage=Damage.MISPLACED, path=self.path, offset=0, seq=seq)
        return header

    def _opened(self) -> PlainFile:
        # The file is opened at the first read, and again at a read after `close`.
        if self._file is None:
            self._file = open_segment(self._files, self.path)
        return self._file

    def close(self) -> None:
        """Close the file. A later read opens it again: a process may not open all files of a long journal at once."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def sync(self) -> None:
        """Make the file durable before it is read: a crashed writer's bytes may still be only in the page cache."""
        self._opened().sync()

    def read(self, offset: int, length: int) -> bytes:
        """Read at one offset, without the window. Return nothing if a forged link names an offset outside the file."""
        if not 0 <= offset <= self.size:  # safety: place-outside-file-not-read
            return b""
        return self._opened().read(offset, length)

    @property
    def is_packed(self) -> bool:
        """Whether the open file is packed."""
        return isinstance(self._opened(), PackedFile)

    def file_bytes(self) -> int:
        """Return the length of the file on disk, packed or not."""
        return self._opened().file_bytes()

    def refresh(self) -> None:
        """Drop the window and read the file's length again: a live writer may have changed both."""
        self._window, self.size = b"", self._opened().size()

    def _at(self, offset: int, length: int) -> int:
        """Return the position of `offset` in the window. Move the window unless it has `length` bytes there."""
        at = offset - self._window_at
        if at < 0 or at + length > len(self._window):
            try:
                self._window = self.read(offset, max(length, _WINDOW_BYTES))
            except JournalDamaged:  # maybe only in a packed piece after what is asked for
                self._window = self.read(offset, length)
            self._window_at, at = offset, 0
        return at

    def start(self) -> Tail:
        """Return the tail before the first frame."""
        return Tail(offset=self.alignment, next_seq=self.header.first_seq, chain=self.chain, index=[])

    def header_at(self, offset: int) -> EntryHeader | Flaw:
        """Return the entry header at an offset if it is intact and names exactly this place."""
        header = self.own_header_at(offset)
        # safety: header-found-in-place
        return header if isinstance(header, Flaw) or header.offset == offset else Flaw.MISPLACED

    def own_header_at(self, offset: int) -> EntryHeader | Flaw:
        """Return the entry header at an offset if it is intact and names any place in this segment."""
        # Without the window: this looks at single places, and would move the window of a walk that is under way.
        head = self.read(offset, HEADER_BYTES)
        header = parse_entry(head) if len(head) == HEADER_BYTES else Flaw.NOTHING
        return header if isinstance(header, Flaw) or self._in_place(header, header.offset) else Flaw.MISPLACED

    def peek(self, offset: int, length: int) -> bytes:
        """Read through the window. Use it for bytes just after a frame."""
        at = self._at(offset, length)
        return self._window[at : at + length]

    def is_zero(self, offset: int, length: int) -> bool:
        """Return whether all of these bytes are zero, as padding must be. `length` is at most ALIGNMENT_MAX."""
        at, window = offset - self._window_at, self._window
        if at < 0 or at + length > len(window):
            at = self._at(offset, length)
            window = self._window
        # One comparison of memory is twenty times as fast as a loop over the bytes.
        return _ZEROS.startswith(window[at : at + length])

    def frame_at(self, offset: int) -> Frame | Flaw:
        """Return the frame at an offset, with both checksums and its place verified. Order and chain are not verified.

        This is the hot path of all reading. It repeats `parse_entry` and `_at` inline, because their calls cost too
        much.
        """
        window, at = self._window, offset - self._window_at
        if at < 0 or at + HEADER_BYTES > len(window):
            at = self._at(offset, HEADER_BYTES)
            window = self._window
            if len(window) - at < HEADER_BYTES:
                return Flaw.BEYOND if any(window[at:]) else Flaw.NOTHING
        header = EntryHeader(*_unpack_entry(window, at))
        # Accept an EVENTS frame of this version at once. `parse_entry` handles every other frame.
        plain = (  # safety: quick-frame-body-bound
            window.startswith(_EVENTS_HEAD, at)
            and 1 <= header.count <= EVENTS_MAX  # safety: quick-frame-not-empty, quick-frame-events-bound
            and header.body_bytes <= BODY_BYTES_MAX
            and header.acked_seq < header.first_seq
            and crc32c(window[at : at + CRC_AT]) == header.header_crc
        )
        if not plain:
            parsed = parse_entry(window, at)
            if isinstance(parsed, Flaw):
                return parsed
        length = HEADER_BYTES + header.body_bytes
        if at + length > len(window):
            if offset + length > self.size:  # safety: frame-ends-within-file
                return Flaw.BEYOND
            at = self._at(offset, length)
            window = self._window
        # Slice twice, for the hash and for the checksum: google_crc32c accepts only bytes, not a memoryview.
        data = window[at : at + length]
        body = data[HEADER_BYTES:]
        if crc32c(body) != header.body_crc:  # safety: body-checksum
            return Flaw.BODY
        if not self._in_place(header, offset):
            return Flaw.MISPLACED
        return Frame(header, body, blake3(data).digest())

    def _in_place(self, header: EntryHeader, offset: int) -> bool:
        own = self.header
        # A misdirected or copied block has right checksums but names another place.
        # safety: frame-names-place, frame-names-segment, frame-names-run
        return header.offset == offset and header.segment_no == own.segment_no and header.run_id == own.run_id


def closed_view(files: Files, name: SegmentName) -> SegmentView:
    """Return the view of a segment with its header read and its file closed."""
    view = SegmentView(files, name)
    view.close()
    return view


class Walk:
    """The frames of one segment in order, from `tail` on. It stops at the first place without the next frame.

    After it has stopped, `flaw` is the reason, for the bytes at `tail.offset`. Iterating again reads that place again,
    so a reader follows a live writer by iterating again.
    """

    def __init__(self, view: SegmentView, tail: Tail | None = None) -> None:
        self.view = view
        self.tail = tail if tail is not None else view.start()
        self.flaw = Flaw.NOTHING

    def __iter__(self) -> Iterator[Frame]:
        check, alignment, advance = self.check, self.view.alignment, self.tail.advance
        while True:
            found = check()
            if not isinstance(found, Frame):
                # The window may be older than the last write of a live writer. Read again before stopping.
                self.view.refresh()  # safety: reader-refreshes
                found = check()
                if not isinstance(found, Frame):
                    self.flaw = found
                    return
            # Before the frame is given out: a caller that stops here finds the tail after the frame that it has.
            advance(found.header, found.chain, alignment)
            yield found

    def check(self) -> Frame | Flaw:
        """Return the next frame, verified against all frames before it, or its flaw. The walk does not move."""
        tail, view = self.tail, self.view
        # After the limit even an intact frame is void: its write was reported as failed.
        if view.limit is not None and tail.offset >= view.limit:  # safety: nothing-after-declared-end
            return Flaw.NOTHING
        frame = view.frame_at(tail.offset)
        # Ask for Frame and not for Flaw: `isinstance` with an enum takes four times as long.
        if not isinstance(frame, Frame):
            return frame
        # Check the order before the chain. A repeated or skipped frame breaks both, and it is misplaced, not edited.
        header = frame.header
        # safety: frame-names-predecessor, frame-numbers-go-on, frames-follow-each-other
        if header.first_seq != tail.next_seq or header.previous_offset != tail.previous_offset:
            return Flaw.ORDER
        return frame if header.previous_chain == tail.chain else Flaw.CHAIN  # safety: chain-checked
