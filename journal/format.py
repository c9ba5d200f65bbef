"""The byte layout of the journal, as tables. All other modules and `docs/journal-format.md` follow this one.

A segment file is a 256-byte segment header, zeros up to the alignment, frames, and zeros to the end of the file. A frame
is one durable batch: a 256-byte entry header, a body, and zeros up to the alignment. All integers are little-endian. The
structs are made from the two field tables below. A test compares the tables of the documentation with them.

Every writer keeps these rules, and every reader may rely on them:

* A segment header never changes after the file has its final name.
* Frames follow each other without a gap. Each contains its own offset and the offset of the frame before it.
* `first_seq` of a frame is one more than the last sequence number before it, also in frames without events.
* A block that contains an acknowledged byte is never written again.
* Fields are only added, in the reserved bytes. If an older reader must not ignore a field, an incompatible flag is set.
"""

from __future__ import annotations

import enum
import struct
from typing import Final, NamedTuple

import msgspec

# Eight readable bytes each, so that they are easy to find in a hex dump.
SEGMENT_MAGIC: Final = b"ESPERWAL"
ENTRY_MAGIC: Final = b"ESPERENT"
VERSION: Final = 2
# Both headers have one fixed size. A reader can therefore read a header before it knows anything else.
HEADER_BYTES: Final = 256
# Frames are padded to whole blocks, because a torn write of a block could destroy acknowledged bytes in it. The padding
# costs no time: a durable write of 256 bytes takes as long as one of 4096. Packing sealed segments removes the padding.
ALIGNMENT: Final = 4096
ALIGNMENT_MIN: Final = 512
ALIGNMENT_MAX: Final = 65_536
# Bounds for the values of a header. A reader never allocates more than this, even if the file is damaged or forged.
# An array16 of msgpack could hold more. A lower bound keeps a turn's frame small and a reader's memory bounded.
EVENTS_MAX: Final = 4096
BODY_BYTES_MAX: Final = 64 * 1024 * 1024
SEGMENT_BYTES: Final = 100_000_000
SEGMENT_BYTES_MAX: Final = 1 << 40
# The distance between two rows of a seal's index: a seek in a sealed segment reads at most this much after its row.
INDEX_STRIDE_BYTES: Final = 65_536
# Numbers for what may change one day. A reader refuses any other value instead of guessing.
CODEC_MSGPACK: Final = 1
HASH_BLAKE3: Final = 1
CHAIN_BYTES: Final = 32
RUN_ID_BYTES: Final = 16
BOOT_ID_BYTES: Final = 16
# The first segment has no predecessor.
NO_CHAIN: Final = bytes(CHAIN_BYTES)

# Flags that this version understands. Version 2 defines none, so a set bit comes from a newer writer.
INCOMPATIBLE_KNOWN: Final = 0


class FrameKind(enum.IntEnum):
    """The content of a frame. Only EVENTS frames take sequence numbers; all others have count 0."""

    EVENTS = 1
    CAPTURE = 2  # the folded state over all events before it
    STATE_HASH = 3  # a hash of that state, to check a replay against
    SEAL = 4  # last frame of a segment: sparse index and totals
    POISON = 5  # first frame after a failed write: declares the failed bytes void
    WATERMARK = 6  # proof that everything before it was acknowledged; written at a clean stop
    STEP_TABLE = 10  # columns of numbers from the segment's events, before its seal; derived


# These kinds are reserved and must not get another meaning. Kinds 11 and up are free.
RESERVED_KINDS: Final = {7: "GAP", 8: "HMAC_TAG", 9: "RETENTION"}


class EntryFlag(enum.IntFlag):
    """Flags of a frame. A reader refuses a frame with a flag it does not know."""

    SKIPPABLE = 0x8000  # a reader that does not know this frame's kind may pass over it


class Field(NamedTuple):
    """One row of a byte table. `code` is a format code of the struct module, with its repeat count."""

    name: str
    offset: int
    size: int
    code: str
    meaning: str


# A segment's end is recorded in its successor, not in itself. After a failed write nothing more is written to a segment,
# and a crash leaves no time to record an end. `previous_last_offset` lets a reader walk backwards over files.
SEGMENT_FIELDS: Final = (
    Field("magic", 0, 8, "8s", "`ESPERWAL`"),
    Field("version", 8, 2, "H", "2"),
    Field("header_bytes", 10, 2, "H", "256"),
    Field("compatible_flags", 12, 4, "I", "0; unknown bits are ignored"),
    Field("incompatible_flags", 16, 4, "I", "0; unknown bits are refused"),
    Field("alignment", 20, 4, "I", "frames start at multiples of this, a power of two from 512 to 65536"),
    Field("run_id", 24, 16, "16s", "the run, the same in every segment and frame"),
    Field("segment_no", 40, 8, "Q", "1 for the first segment, then one more each"),
    Field("first_seq", 48, 8, "Q", "the sequence number the next event gets when this segment begins"),
    Field("created_wall_ns", 56, 8, "q", "wall clock at creation, ns since 1970, as read"),
    Field("boot_id", 64, 16, "16s", "the kernel's boot id, to which monotonic stamps belong"),
    Field("previous_segment_no", 80, 8, "Q", "0 in the first segment"),
    Field("previous_length", 88, 8, "Q", "where the predecessor's valid frames end"),
    Field("previous_last_offset", 96, 8, "Q", "offset of the predecessor's last valid frame"),
    Field("previous_last_seq", 104, 8, "Q", "the last sequence number in or before the predecessor"),
    Field("previous_chain", 112, 32, "32s", "chain value after the predecessor's last valid frame"),
    Field("context_hash", 144, 32, "32s", "hash of the execution context the run was started in"),
    Field("segment_bytes", 176, 8, "Q", "length of this file"),
    Field("codec", 184, 2, "H", "1: bodies are msgpack"),
    Field("hash", 186, 2, "H", "1: the chain is BLAKE3, 32 bytes"),
    Field("reserved", 188, 64, "64x", "zero"),
    Field("header_crc", 252, 4, "I", "CRC-32C of bytes 0 to 251"),
)

# The reasons for some fields of a frame:
#   offset, segment_no, run_id   a block that was written or copied to the wrong place is not accepted as a frame
#   acked_seq                    today it follows from the order; a writer with several writes in flight will need it
#   previous_offset              walking backwards: the last events can be read without the first
#   ..._max                      labels can decrease (clocks are set, steps are re-run); maxima cannot, so they are searched
#   body_crc before header_crc   the header's checksum covers the body's, so a good header also proves that value
ENTRY_FIELDS: Final = (
    Field("magic", 0, 8, "8s", "`ESPERENT`"),
    Field("version", 8, 2, "H", "2"),
    Field("header_bytes", 10, 2, "H", "256"),
    Field("kind", 12, 2, "H", "what the body is, see the kinds"),
    Field("flags", 14, 2, "H", "see the flags; unknown bits are refused"),
    Field("first_seq", 16, 8, "Q", "sequence number of the first event, or of the next one if count is 0"),
    Field("count", 24, 4, "I", "number of events, 1 to 4096; 0 in every kind but EVENTS"),
    Field("body_bytes", 28, 4, "I", "length of the body without the padding"),
    Field("acked_seq", 32, 8, "Q", "highest sequence number that was durable before this frame was written"),
    Field("offset", 40, 8, "Q", "this frame's own offset in its file"),
    Field("previous_offset", 48, 8, "Q", "offset of the frame before it in this file, 0 for the first"),
    Field("segment_no", 56, 8, "Q", "the segment it belongs to"),
    Field("run_id", 64, 16, "16s", "the run it belongs to"),
    Field("wall_ns", 80, 8, "q", "wall clock, ns since 1970, as read"),
    Field("mono_ns", 88, 8, "q", "monotonic clock, ns, within the boot"),
    Field("epoch", 96, 8, "Q", "label: the epoch of its last event"),
    Field("step", 104, 8, "Q", "label: the step of its last event"),
    Field("wall_ns_max", 112, 8, "q", "highest wall_ns of any EVENTS frame up to this one"),
    Field("epoch_max", 120, 8, "Q", "highest epoch label of any EVENTS frame up to this one"),
    Field("step_max", 128, 8, "Q", "highest step label of any EVENTS frame up to this one"),
    Field("previous_chain", 136, 32, "32s", "chain value before this frame"),
    Field("reserved", 168, 80, "80x", "zero"),
    Field("body_crc", 248, 4, "I", "CRC-32C of the body"),
    Field("header_crc", 252, 4, "I", "CRC-32C of bytes 0 to 251"),
)


class SegmentHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The variable fields of a segment header. The codec adds magic, sizes and checksum."""

    run_id: bytes
    segment_no: int
    first_seq: int
    created_wall_ns: int
    boot_id: bytes
    previous_segment_no: int
    previous_length: int
    previous_last_offset: int
    previous_last_seq: int
    previous_chain: bytes
    context_hash: bytes
    segment_bytes: int
    alignment: int = ALIGNMENT
    version: int = VERSION
    header_bytes: int = HEADER_BYTES
    compatible_flags: int = 0
    incompatible_flags: int = 0
    codec: int = CODEC_MSGPACK
    hash: int = HASH_BLAKE3


class EntryHeader(msgspec.Struct, frozen=True, gc=False):
    """The fields of an entry header, in the order of the table, so that it can be made from an unpacked tuple."""

    magic: bytes
    version: int
    header_bytes: int
    kind: int
    flags: int
    first_seq: int
    count: int
    body_bytes: int
    acked_seq: int
    offset: int
    previous_offset: int
    segment_no: int
    run_id: bytes
    wall_ns: int
    mono_ns: int
    epoch: int
    step: int
    wall_ns_max: int
    epoch_max: int
    step_max: int
    previous_chain: bytes
    body_crc: int
    header_crc: int

    @property
    def last_seq(self) -> int:
        """The last sequence number in or before this frame."""
        return self.first_seq + self.count - 1


def struct_of(fields: tuple[Field, ...]) -> struct.Struct:
    """Return the codec of a field table without its last field, which is the checksum over the others."""
    return struct.Struct("<" + "".join(field.code for field in fields[:-1]))


SEGMENT_STRUCT: Final = struct_of(SEGMENT_FIELDS)
# A header is written in two steps, because its last field is the checksum of the rest. It is read in one step.
ENTRY_STRUCT: Final = struct_of(ENTRY_FIELDS)
ENTRY_WHOLE_STRUCT: Final = struct.Struct(ENTRY_STRUCT.format + ENTRY_FIELDS[-1].code)
CRC_STRUCT: Final = struct.Struct("<I")


def aligned(length: int, alignment: int) -> int:
    """Return `length` rounded up to the alignment, which is a power of two."""
    return (length + alignment - 1) & -alignment
