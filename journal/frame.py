"""Encode, check and decode frames and segment headers. Pure functions on bytes; no files.

A frame has two checksums, because its length must be trusted before its body is read. It also has a hash chain, because
an editor can recompute a checksum. Each header carries the chain value before the frame. The value after the frame is
the hash of header and body. A segment's chain begins with the hash of its own header, which carries the last chain
value of its predecessor.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec
from blake3 import blake3
from google_crc32c import value as crc32c

from journal import format as fmt
from journal.format import (
    ALIGNMENT_MAX,
    ALIGNMENT_MIN,
    BODY_BYTES_MAX,
    CRC_STRUCT,
    ENTRY_MAGIC,
    ENTRY_WHOLE_STRUCT,
    EVENTS,
    EVENTS_MAX,
    HEADER_BYTES,
    SEGMENT_BYTES_MAX,
    VERSION,
    EntryFlag,
    EntryHeader,
    FrameKind,
    SegmentHeader,
    aligned,
)

CRC_AT: Final = HEADER_BYTES - 4
_NO_HEADER: Final = bytes(HEADER_BYTES)
_KINDS: Final = frozenset(int(kind) for kind in FrameKind)
_FLAGS_KNOWN: Final = int(EntryFlag.SKIPPABLE)
# Events stay raw: each is a view of the body. The caller, who has the types, decodes them.
_RAW_EVENTS: Final = msgspec.msgpack.Decoder(list[msgspec.Raw])


class Flaw(enum.Enum):
    """The reason why the bytes at an offset are not the next frame."""

    # Checksums are checked before the place, and the place before order and chain. So a torn write or a damaged block
    # is never called misplaced or edited, which would say that somebody else wrote here.
    NOTHING = "no frame: only zeros, or the end of the file"
    UNREADABLE = "the header fails its checksum"
    NEWER = "the frame was written by a newer version"
    BEYOND = "the frame is longer than its file"
    BODY = "the body fails its checksum"
    MISPLACED = "the frame is intact but belongs to another place"
    ORDER = "the frame is intact but does not follow the one before it"
    CHAIN = "the frame is intact but breaks the hash chain"


class Frame(msgspec.Struct, frozen=True, gc=False):
    """One frame that verified: its header, its body, and the chain value after it."""

    header: EntryHeader
    body: bytes
    chain: bytes


def encode_segment_header(header: SegmentHeader) -> bytes:
    """Return the 256 bytes of a segment header."""
    packed = fmt.SEGMENT_STRUCT.pack(*msgspec.structs.astuple(header)[:-1])
    return packed + CRC_STRUCT.pack(crc32c(packed))


def decode_segment_header(data: bytes) -> SegmentHeader | Flaw:
    """Return the segment header in the first 256 bytes of a file, or the reason why there is none."""
    if len(data) < HEADER_BYTES or not any(data):
        return Flaw.NOTHING
    (crc,) = CRC_STRUCT.unpack_from(data, CRC_AT)
    # Magic first, then the checksum, then every other field: a field means something only if the checksum is right.
    if data[:8] != fmt.SEGMENT_MAGIC or crc32c(data[:CRC_AT]) != crc:  # safety: segment-header-checksum
        return Flaw.UNREADABLE
    names, values = SegmentHeader.__struct_fields__[:-1], fmt.SEGMENT_STRUCT.unpack_from(data)
    header = SegmentHeader(**dict(zip(names, values, strict=True)))
    if _is_newer(header):  # safety: newer-segment-refused
        return Flaw.NEWER
    return header if _is_within(header) else Flaw.UNREADABLE  # safety: segment-header-bounds


def _is_within(header: SegmentHeader) -> bool:
    # The checksum is right, but every reader relies on these bounds, for example when it allocates memory.
    alignment = header.alignment
    power_of_two = ALIGNMENT_MIN <= alignment <= ALIGNMENT_MAX and alignment & (alignment - 1) == 0
    return power_of_two and alignment <= header.segment_bytes <= SEGMENT_BYTES_MAX


def _is_newer(header: SegmentHeader) -> bool:
    return (
        header.version != VERSION
        or header.header_bytes != HEADER_BYTES
        or header.incompatible_flags & ~fmt.INCOMPATIBLE_KNOWN != 0
        or header.codec != fmt.CODEC_MSGPACK
        or header.hash != fmt.HASH_BLAKE3
    )


def first_chain(segment_header: bytes) -> bytes:
    """Return the chain value before a segment's first frame: the hash of its 256-byte header."""
    return blake3(segment_header).digest()


def array_head(count: int) -> bytes:
    """Return the msgpack head of an array of 1 to 4096 events."""
    # Up to 15 a fixarray, else an array16. This is the shortest form, which every msgpack library writes.
    return bytes((0x90 | count,)) if count < 16 else b"\xdc" + count.to_bytes(2, "big")


def frame_bytes(body_bytes: int, alignment: int) -> int:
    """Return how many bytes a frame with a body of this length takes in a file."""
    return aligned(HEADER_BYTES + body_bytes, alignment)


def parse_entry(data: bytes, at: int = 0) -> EntryHeader | Flaw:
    """Return the entry header in 256 bytes of `data`, or its flaw. The caller checks the body and the offset."""
    # Unpack before checking: the tuple costs less than the slices that checking first would need.
    header = EntryHeader(*ENTRY_WHOLE_STRUCT.unpack_from(data, at))
    # safety: entry-header-checksum
    if header.magic != ENTRY_MAGIC or crc32c(data[at : at + CRC_AT]) != header.header_crc:
        # Zeros are what a segment is filled with, so they mean "not written". Any other bytes are a torn write or
        # damage.
        return Flaw.NOTHING if data[at : at + HEADER_BYTES] == _NO_HEADER else Flaw.UNREADABLE
    # The checksum is right here, so an unknown value means a newer writer and not a broken disk.
    # safety: newer-frame-refused
    if header.version != VERSION or header.header_bytes != HEADER_BYTES or header.flags & ~_FLAGS_KNOWN:
        return Flaw.NEWER
    if header.kind not in _KINDS:
        # An unknown kind with events would shift all later sequence numbers, so it is refused even if it is marked
        # skippable.
        # safety: unknown-kind-refused
        return Flaw.NEWER if header.count or not header.flags & EntryFlag.SKIPPABLE else header
    # The checksums are right but the values are impossible. A torn write cannot do that, so this is not
    # Flaw.UNREADABLE.
    count_fits = 1 <= header.count <= EVENTS_MAX if header.kind == EVENTS else header.count == 0
    within = count_fits and header.body_bytes <= BODY_BYTES_MAX and header.acked_seq < header.first_seq
    return header if within else Flaw.ORDER  # safety: frame-bounds


def decode_events(frame: Frame) -> list[msgspec.Raw] | None:
    """Return the events of an EVENTS frame as raw msgpack, or None if their number differs from the header's."""
    try:
        events = _RAW_EVENTS.decode(frame.body)
    except (msgspec.MsgspecError, RecursionError):
        return None
    # With another count, the numbers of all later events would be wrong although every checksum is right.
    return events if len(events) == frame.header.count else None  # safety: body-has-counted-events
