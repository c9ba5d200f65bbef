"""Compose the bytes that the writer puts on disk: frames, seals, and the head of a new segment. Pure functions.

`journal.appending` decides when to write them and handles failed writes.
"""

from __future__ import annotations

from typing import Final

import msgspec
from blake3 import blake3
from google_crc32c import value as crc32c

from journal.direct import FrameBuffer
from journal.format import (
    ALIGNMENT_MAX,
    CRC_STRUCT,
    ENTRY_MAGIC,
    ENTRY_STRUCT,
    EVENTS,
    HEADER_BYTES,
    INDEX_STRIDE_BYTES,
    VERSION,
    EntryHeader,
    FrameKind,
    SegmentHeader,
    aligned,
)
from journal.frame import encode_segment_header, first_chain, frame_bytes
from journal.locate import SealBody
from journal.segment import Tail

# A seal's body is a map of a few integers and 46 bytes, at most, for each row of its index.
_SEAL_BASE_BYTES: Final = 512
_SEAL_ROW_BYTES: Final = 46
# The body of the watermark of an orderly close: `{"clean": true}`.
CLEAN_STOP: Final = b"\x81\xa5clean\xc3"
_PADDING: Final = bytes(ALIGNMENT_MAX)
_encode: Final = msgspec.msgpack.Encoder().encode


class Stamp(msgspec.Struct, frozen=True, gc=False):
    """The labels of a frame: the caller's, or those of the frame before if the journal itself writes the frame."""

    epoch: int
    step: int
    wall_ns: int
    mono_ns: int


class Fault(msgspec.Struct, frozen=True):
    """A failed write: its place and reason. The bytes there are never read again. It is the body of a POISON frame."""

    # For people who inspect the file. Readers need only the frame: the segment header has the valid end.
    segment_no: int
    void_from: int
    last_seq: int
    errno: int
    reason: str


class Batch(msgspec.Struct, frozen=True, gc=False):
    """The content of one frame."""

    kind: int
    events: int
    body: bytes
    flags: int = 0


def compose(
    room: memoryview, header: SegmentHeader, tail: Tail, batch: Batch, stamp: Stamp
) -> tuple[int, EntryHeader, bytes]:
    """Compose the frame at the tail in `room`. Return its padded length, its header, and the chain value after it.

    This is the hot path of a commit: one pack, two checksums, one hash, one copy of the body.
    """
    kind, count, body = batch.kind, batch.events, batch.body
    epoch, step, wall_ns, mono_ns = stamp.epoch, stamp.step, stamp.wall_ns, stamp.mono_ns
    # Frames without events inherit the maxima, so every frame can be used in a search.
    wall_ns_max, epoch_max, step_max = tail.maxima
    if kind == EVENTS:
        wall_ns_max, epoch_max, step_max = max(wall_ns_max, wall_ns), max(epoch_max, epoch), max(step_max, step)
    # In the order of ENTRY_FIELDS. One write is in flight at a time, so every event before this frame is durable, and
    # acked_seq is the number before the frame's first.
    values = (
        ENTRY_MAGIC, VERSION, HEADER_BYTES, kind, batch.flags, tail.next_seq, count, len(body), tail.next_seq - 1,
        tail.offset, tail.previous_offset, header.segment_no, header.run_id, wall_ns, mono_ns, epoch, step, wall_ns_max,
        epoch_max, step_max, tail.chain, crc32c(body),
    )  # fmt: skip
    # The header's checksum last: it covers the body's, so a reader that trusts the header may trust its length.
    packed = ENTRY_STRUCT.pack(*values)
    crc = crc32c(packed)
    packed += CRC_STRUCT.pack(crc)
    end = HEADER_BYTES + len(body)
    length = aligned(end, header.alignment)
    room[:HEADER_BYTES] = packed
    room[HEADER_BYTES:end] = body
    # The buffer still holds the frame before. Its bytes must not end up as padding.
    room[end:length] = _PADDING[: length - end]  # safety: padding-is-zeros
    # Hash header and body without the padding: the padding has no meaning. `verify` checks that it is zero.
    return length, EntryHeader(*values, crc), blake3(room[:end]).digest()


def seal_body(tail: Tail, first_seq: int) -> bytes:
    """Return the body of a SEAL frame: totals, the chain value before it, and the sparse index."""
    # A map and not an array: fields can be added, and a reader passes over those it does not know.
    return _encode(SealBody(first_seq, tail.last_seq, tail.frames, tail.events, tail.chain, tail.index))


def closing_bytes_max(segment_bytes: int, alignment: int) -> int:
    """Return the bytes that a watermark and the longest seal take. A segment keeps this room free at its end."""
    # The index has at most one row for each stride (see `Tail.advance`), and one for the first frame.
    rows_max = segment_bytes // INDEX_STRIDE_BYTES + 1
    seal = frame_bytes(_SEAL_BASE_BYTES + _SEAL_ROW_BYTES * rows_max, alignment)
    return seal + frame_bytes(len(CLEAN_STOP), alignment)


def compose_head(
    buffer: FrameBuffer,
    header: SegmentHeader,
    before: Tail | None,
    *,
    fault: Fault | None,
    capture: bytes,
    stamp: Stamp,
) -> tuple[memoryview, Tail]:
    """Compose a segment's head as one write at offset 0, and return it with the tail after it.

    The head is the segment header, a POISON frame if the predecessor failed (`fault`), and the capture.
    """
    alignment = header.alignment
    packed = encode_segment_header(header)
    # The maxima continue from the predecessor: a search over segments relies on their never decreasing.
    inherited = before.maxima if before is not None else (0, 0, 0)
    tail = Tail(offset=alignment, next_seq=header.first_seq, chain=first_chain(packed), inherited=inherited, index=[])
    # safety: failed-bytes-declared-void
    batches = [Batch(int(FrameKind.POISON), 0, _encode(fault))] if fault is not None else []
    # The POISON frame comes before the capture: a reader asks only the first frame whether the predecessor's end is
    # void.
    batches.append(Batch(int(FrameKind.CAPTURE), 0, capture))
    room = buffer.room(alignment + sum(frame_bytes(len(batch.body), alignment) for batch in batches))
    room[:alignment] = packed.ljust(alignment, b"\0")
    for batch in batches:
        _, entry, chain = compose(room[tail.offset :], header, tail, batch, stamp)
        tail.advance(entry, chain, alignment)
    return room[: tail.offset], tail
