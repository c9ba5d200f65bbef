"""The segment that is being written, and the header of the next one, which is made from its predecessor."""

from __future__ import annotations

from pathlib import Path
from typing import Self

import msgspec

from journal.columns import ROWS_MAX, Gathering
from journal.errors import BatchRefused
from journal.format import HEADER_BYTES, NO_CHAIN, SEGMENT_BYTES_MAX, SegmentHeader
from journal.frame import frame_bytes
from journal.segment import Tail
from journal.writing import closing_bytes_max

# Header, POISON frame, capture, watermark and seal take at least one block each. A smaller segment has no room for
# events.
_SEGMENT_BLOCKS_MIN = 8
_DOUBLINGS_MAX = 40  # more than there are between the shortest and the longest segment
_POISON_BYTES_MAX = 4096  # its longest field is a message of the operating system, cut to fit


class Growth(msgspec.Struct, frozen=True):
    """How long segments are planned: `first` bytes, each later one four times as long, and `most` in the end.

    A short run needs little space, and a long one soon has segments of full length. The plan follows from the segment's
    number alone, so a start continues it. Both are whole blocks.
    """

    first: int
    most: int

    @classmethod
    def between(cls, first_bytes: int, segment_bytes: int, alignment: int) -> Self:
        """Return the plan with these lengths, in whole blocks. Raises BatchRefused if one is out of bounds."""
        least = _SEGMENT_BLOCKS_MIN * alignment
        if not least <= segment_bytes <= SEGMENT_BYTES_MAX:
            raise BatchRefused(f"segment_bytes {segment_bytes} is not between {least} and {SEGMENT_BYTES_MAX}")
        # Whole blocks, so that the last frame of a segment may end exactly at the end of its file.
        most = segment_bytes // alignment * alignment
        return cls(min(max(least, first_bytes // alignment * alignment), most), most)

    def planned(self, segment_no: int) -> int:
        """Return the planned length of a segment in bytes."""
        return min(self.most, self.first << min(2 * (segment_no - 1), _DOUBLINGS_MAX))


class Current(msgspec.Struct):
    """The segment being written: its descriptor, its header, and the end of its frames."""

    # Only `tail` and `gathered` change. A rotation or a failure makes a new object, so the old descriptor is never used
    # with the new tail.
    descriptor: int
    path: Path
    header: SegmentHeader
    tail: Tail
    direct: bool = False  # whether the descriptor writes past the page cache
    gathered: Gathering | None = None  # the rows of its table so far, if the caller wants tables
    room_end: int = 0  # only a watermark and the seal may be written after this offset

    def __post_init__(self) -> None:
        size = self.header.segment_bytes
        # The room for the closing frames is reserved from the start. A full segment can then always be sealed, even
        # on a full disk.
        self.room_end = size - closing_bytes_max(size, self.header.alignment)  # safety: room-for-closing

    def has_room(self, body_bytes: int, rows: int) -> bool:
        """Return whether a frame with this body and `rows` rows in the table fits, with room to close the segment."""
        gathered = self.gathered
        if gathered is None:
            return self.fits(body_bytes) and not self.tail.sealed  # safety: no-event-after-seal
        table = gathered.room(rows, self.header.alignment)
        # After a crash between seal and switch the newest segment is sealed. No event may follow the seal.
        # safety: room-for-table, no-event-after-seal-with-table
        return self.fits(body_bytes, table) and len(gathered) + rows <= ROWS_MAX and not self.tail.sealed

    def fits(self, body_bytes: int, more: int = 0) -> bool:
        """Return whether a frame with this body, and `more` bytes, fits before the room for the closing frames."""
        return self.tail.offset + frame_bytes(body_bytes, self.header.alignment) + more <= self.room_end


def first_header(run_id: bytes, context_hash: bytes, boot_id: bytes, size: int, alignment: int) -> SegmentHeader:
    """Return the header of a run's first segment, without the time. `next_header` makes all others from it."""
    # Zeros for the predecessor: `check_link` accepts them in segment 1 only.
    return SegmentHeader(
        run_id=run_id,
        segment_no=1,
        first_seq=1,
        created_wall_ns=0,
        boot_id=boot_id,
        previous_segment_no=0,
        previous_length=0,
        previous_last_offset=0,
        previous_last_seq=0,
        previous_chain=NO_CHAIN,
        context_hash=context_hash,
        segment_bytes=size,
        alignment=alignment,
    )


def next_header(
    base: SegmentHeader, before: Current | None, growth: Growth, *, body_bytes: int, capture_bytes: int
) -> SegmentHeader:
    """Return the header of the segment after `before`. `base` has the fields that do not depend on it.

    The file gets longer than `growth` plans if the capture and the waiting batch need more room.
    """
    # Take the link from the tail in memory, never from the predecessor's file. After a failed write the end of that
    # file is unknown, but the last acknowledged frame is known.
    if before is not None:
        tail = before.tail
        base = msgspec.structs.replace(
            base,
            segment_no=before.header.segment_no + 1,
            first_seq=tail.next_seq,
            previous_segment_no=before.header.segment_no,
            previous_length=tail.offset,
            previous_last_offset=tail.previous_offset,
            previous_last_seq=tail.last_seq,
            previous_chain=tail.chain,
        )
    alignment = base.alignment
    bodies = (_POISON_BYTES_MAX - HEADER_BYTES, capture_bytes, body_bytes)
    need = alignment + sum(frame_bytes(length, alignment) for length in bodies)
    # The closing frames grow with the segment, but far more slowly. Their size for twice the length is enough.
    # A state or a batch may outgrow the configured length. A longer file is better than a run that cannot continue.
    size = max(growth.planned(base.segment_no), need + closing_bytes_max(2 * need, alignment))
    return msgspec.structs.replace(base, segment_bytes=size)
