"""Frames and segment headers as bytes: made, checked, read. Pure; it knows nothing of files.

Two checksums, because the length must be trusted before the body is read. One hash chain over header and body, because
a checksum does not notice an editor: each header carries the chain value before it, and the value after it is the hash
of the header and the body. A segment's chain begins with the hash of its own header, which carries its predecessor's.
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
    ENTRY_STRUCT,
    ENTRY_WHOLE_STRUCT,
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

_CRC_AT: Final = HEADER_BYTES - 4
_NO_HEADER: Final = bytes(HEADER_BYTES)
_KINDS: Final = frozenset(int(kind) for kind in FrameKind)
_FLAGS_KNOWN: Final = int(EntryFlag.SKIPPABLE)
_EVENTS: Final = int(FrameKind.EVENTS)
# Events stay raw: each is a view of the body, decoded by whoever knows its type.
_RAW_EVENTS: Final = msgspec.msgpack.Decoder(list[msgspec.Raw])


class Flaw(enum.Enum):
    """Why the bytes at a place are not the next frame."""

    NOTHING = "no frame: only zeros, or the end of the file"
    UNREADABLE = "the header fails its checksum"
    NEWER = "the frame was written by a newer version"
    BEYOND = "the frame is longer than its file"
    BODY = "the body fails its checksum"
    MISPLACED = "the frame is whole but belongs to another place"
    ORDER = "the frame is whole but does not follow the one before it"
    CHAIN = "the frame is whole but breaks the hash chain"


# A crash of the writer cannot leave a whole frame in the wrong place; these are never torn writes.
WHOLE_BUT_WRONG: Final = frozenset({Flaw.MISPLACED, Flaw.ORDER, Flaw.CHAIN})


class Frame(msgspec.Struct, frozen=True, gc=False):
    """One frame that verified: its header, its body, and the chain value after it."""

    header: EntryHeader
    body: bytes
    chain: bytes


def encode_segment_header(header: SegmentHeader) -> bytes:
    """The 256 bytes of a segment header."""
    values = (getattr(header, field.name) for field in fmt.SEGMENT_FIELDS[1:-1] if field.name != "reserved")
    packed = fmt.SEGMENT_STRUCT.pack(fmt.SEGMENT_MAGIC, *values)
    return packed + CRC_STRUCT.pack(crc32c(packed))


def decode_segment_header(data: bytes) -> SegmentHeader | Flaw:
    """The segment header in the first 256 bytes of a file, or why there is none."""
    if len(data) < HEADER_BYTES or not any(data):
        return Flaw.NOTHING
    (crc,) = CRC_STRUCT.unpack_from(data, _CRC_AT)
    if data[:8] != fmt.SEGMENT_MAGIC or crc32c(data[:_CRC_AT]) != crc:
        return Flaw.UNREADABLE
    names = [field.name for field in fmt.SEGMENT_FIELDS[:-1] if field.name != "reserved"]
    fields = dict(zip(names, fmt.SEGMENT_STRUCT.unpack_from(data), strict=True))
    del fields["magic"]
    header = SegmentHeader(**fields)
    if _is_newer(header):
        return Flaw.NEWER
    return header if _is_within(header) else Flaw.UNREADABLE


def _is_within(header: SegmentHeader) -> bool:
    # A header outside the bounds has a good checksum and was written wrong; everything that reads reckons with these.
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
    """The chain value before a segment's first frame: the hash of its 256-byte header."""
    return blake3(segment_header).digest()


def chain_after(frame: bytes) -> bytes:
    """The chain value after a frame, given its header and body without the padding."""
    return blake3(frame).digest()


def array_head(count: int) -> bytes:
    """The msgpack head of an array of 1 to 4096 events."""
    # A fixarray up to 15, else an array16: the shortest form, as every msgpack library writes it.
    return bytes((0x90 | count,)) if count < 16 else b"\xdc" + count.to_bytes(2, "big")


def frame_bytes(body_bytes: int, alignment: int) -> int:
    """What a body of this length takes in a file."""
    return aligned(HEADER_BYTES + body_bytes, alignment)


def encode_entry_header(header: EntryHeader) -> bytes:
    """The 256 bytes of an entry header; its two checksum fields and its magic are taken as given."""
    values = msgspec.structs.astuple(header)
    return ENTRY_STRUCT.pack(*values[:-1]) + CRC_STRUCT.pack(values[-1])


def parse_entry(data: bytes, at: int = 0) -> EntryHeader | Flaw:
    """The entry header in 256 bytes of `data`, checked by itself; its body and its place are the caller's to check."""
    # Unpacked before it is checked: an unpacked tuple costs less than the slices that checking first would take.
    header = EntryHeader(*ENTRY_WHOLE_STRUCT.unpack_from(data, at))
    if header.magic != ENTRY_MAGIC or crc32c(data[at : at + _CRC_AT]) != header.header_crc:
        return Flaw.NOTHING if data[at : at + HEADER_BYTES] == _NO_HEADER else Flaw.UNREADABLE
    # Only now, with the checksum good, does a strange value mean a newer writer and not a broken disk.
    if header.version != VERSION or header.header_bytes != HEADER_BYTES or header.flags & ~_FLAGS_KNOWN:
        return Flaw.NEWER
    if header.kind not in _KINDS:
        return Flaw.NEWER if header.count or not header.flags & EntryFlag.SKIPPABLE else header
    # A frame outside the bounds has good checksums and was written wrong; it is never taken for a torn write.
    count_fits = 1 <= header.count <= EVENTS_MAX if header.kind == _EVENTS else header.count == 0
    within = count_fits and header.body_bytes <= BODY_BYTES_MAX and header.acked_seq < header.first_seq
    return header if within else Flaw.ORDER


def decode_events(frame: Frame) -> list[msgspec.Raw] | None:
    """The events of an EVENTS frame as raw msgpack, or None if the body does not hold as many as its header says."""
    try:
        events = _RAW_EVENTS.decode(frame.body)
    except msgspec.MsgspecError:
        return None
    return events if len(events) == frame.header.count else None
