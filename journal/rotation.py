"""Beginning the next segment: its header from the one before it, its file from a spare, its name last.

The whole head goes into the spare in one write, before the rename. So a crash leaves either no next segment (and a spare
that the next start removes) or one that is complete; never a `.wal` file that must be judged.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from journal.columns import ROWS_MAX, Gathering
from journal.direct import DirectWrites, FrameBuffer, write_frames
from journal.files import Files
from journal.format import HEADER_BYTES, NO_CHAIN, SegmentHeader
from journal.frame import frame_bytes
from journal.segment import Tail, segment_file_name
from journal.spare import SpareMaker
from journal.writing import Head, closing_bytes_max, compose_head

_POISON_BYTES_MAX = 4096  # its reason is an operating system's message, cut to what fits


class Current(msgspec.Struct):
    """The segment being written: its descriptor, its header, and where its frames end."""

    descriptor: int
    path: Path
    header: SegmentHeader
    tail: Tail
    direct: bool = False  # whether the descriptor writes past the page cache
    gathered: Gathering | None = None  # the rows of its table so far, where one is wanted
    room_end: int = 0  # frames other than a watermark and the seal end here at the latest

    def __post_init__(self) -> None:
        size = self.header.segment_bytes
        self.room_end = size - closing_bytes_max(size, self.header.alignment)

    def has_room(self, body_bytes: int, rows: int) -> bool:
        """Whether a frame with this body, and this many rows for the table, fits, and what closes the segment behind it."""
        gathered = self.gathered
        if gathered is None:
            return self.fits(body_bytes) and not self.tail.sealed
        table = gathered.room(rows, self.header.alignment)
        return self.fits(body_bytes, table) and len(gathered) + rows <= ROWS_MAX and not self.tail.sealed

    def fits(self, body_bytes: int, more: int = 0) -> bool:
        """Whether a frame with this body, and so many bytes more, fits before what closes the segment."""
        return self.tail.offset + frame_bytes(body_bytes, self.header.alignment) + more <= self.room_end


class RenameFailed(Exception):
    """The new segment may or may not have its name on disk: only a new start can tell."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


def first_header(run_id: bytes, context_hash: bytes, boot_id: bytes, size: int, alignment: int) -> SegmentHeader:
    """The header of a run's first segment, but for the time; `next_header` makes all others from it."""
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


def next_header(base: SegmentHeader, before: Current | None, body_bytes: int, capture_bytes: int) -> SegmentHeader:
    """The header of the segment behind `before`; `base` has what does not depend on it, the length at least.

    The file is made longer than asked where the capture and the batch that is waiting need it.
    """
    # The link is taken from the tail in memory, never from the predecessor's file: after a failed write that file's end
    # is unknown, the last acknowledged frame is not.
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
    # What closes a segment grows with it, though far slower: reckoned for twice the length it is enough.
    size = max(base.segment_bytes, need + closing_bytes_max(2 * need, alignment))
    return msgspec.structs.replace(base, segment_bytes=size)


class SegmentMaker(NamedTuple):
    """What making a segment takes."""

    files: Files
    spares: SpareMaker
    folder: Path
    direct: DirectWrites
    buffer: FrameBuffer
    reached: Callable[[str], None]

    def create(self, head: Head) -> Current:
        """Make the segment durable under its final name. Raises OSError if nothing came of it, or RenameFailed."""
        header = head.header
        spare = self.spares.take(header.segment_bytes)
        try:
            descriptor = self.files.open_write(spare)
        except OSError:
            self.spares.discard(spare)
            raise
        is_direct = self.direct.turn_on(descriptor, header.alignment)
        # One write for everything: until the rename nobody looks at the file, so it need not be torn-proof.
        data, tail = compose_head(self.buffer, head)
        try:
            write_frames(self.files, descriptor, data, 0, direct=is_direct)
        except OSError:
            self.files.close(descriptor)
            self.spares.discard(spare)
            raise
        self.reached("rotation_head")
        path = self.folder / segment_file_name(header.segment_no, header.first_seq)
        try:
            self.files.rename(spare, path)
            self.files.fsync_folder(self.folder)
        except OSError as error:
            self.files.close(descriptor)
            raise RenameFailed(error) from error
        self.reached("rotation")
        return Current(descriptor, path, header, tail, direct=is_direct)
