"""The byte layout of the journal, as tables. All other modules and `docs/journal-format.md` follow this one.

A segment file is a 256-byte segment header, zeros up to the alignment, frames, and zeros to the end of the file. A
frame is one durable batch: a 256-byte entry header, a body, and zeros up to the alignment. All integers are
little-endian. The structs and the field tables are made from the two header classes below. A test compares the tables
of the documentation with them.

Every writer keeps these rules, and every reader may rely on them:

* A segment header never changes after the file has its final name.
* Frames follow each other without a gap. Each contains its own offset and the offset of the frame before it.
* `first_seq` of a frame is one more than the last sequence number before it, also in frames without events.
* A block that contains an acknowledged byte is never written again.
* Fields are only added, in the reserved bytes. If an older reader must not ignore a field, an incompatible flag is set.
"""

import enum
import struct
from typing import Annotated, Final, NamedTuple, get_type_hints

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
# The first segment's length: enough for the beginning of a run, on a nearly full disk too.
FIRST_SEGMENT_BYTES: Final = 1 << 18
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

    # The numbers are on disk, so a member is never given another one.
    EVENTS = 1
    CAPTURE = 2  # the folded state over all events before it
    STATE_HASH = 3  # a hash of that state, to check a replay against
    SEAL = 4  # last frame of a segment: sparse index and totals
    POISON = 5  # first frame after a failed write: declares the failed bytes void
    WATERMARK = 6  # proof that everything before it was acknowledged; written at a clean stop
    STEP_TABLE = 10  # columns of numbers from the segment's events, before its seal; derived


# The kind of nearly every frame, as a plain number: comparing with the member of the enum takes longer.
EVENTS: Final = int(FrameKind.EVENTS)
# These kinds are reserved and must not get another meaning. Kinds 11 and up are free.
RESERVED_KINDS: Final = {7: "GAP", 8: "HMAC_TAG", 9: "RETENTION"}


class EntryFlag(enum.IntFlag):
    """Flags of a frame. A reader refuses a frame with a flag it does not know."""

    SKIPPABLE = 0x8000  # a reader that does not know this frame's kind may pass over it


class At(NamedTuple):
    """How a header stores a field.

    `code` is a format character of the module struct, `zeros` the number of reserved bytes before the field.
    """

    code: str
    meaning: str
    zeros: int = 0


# A segment's end is recorded in its successor, not in itself. After a failed write nothing more is written to a
# segment, and a crash leaves no time to record an end. `previous_last_offset` lets a reader walk backwards over files.
class SegmentHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a segment header, in the order of its bytes. `encode_segment_header` computes the checksum."""

    magic: Annotated[bytes, At("8s", "`ESPERWAL`")] = SEGMENT_MAGIC
    version: Annotated[int, At("H", "2")] = VERSION
    header_bytes: Annotated[int, At("H", "256")] = HEADER_BYTES
    compatible_flags: Annotated[int, At("I", "0; unknown bits are ignored")] = 0
    incompatible_flags: Annotated[int, At("I", "0; unknown bits are refused")] = 0
    alignment: Annotated[int, At("I", "frames start at multiples of this, a power of two from 512 to 65536")] = (
        ALIGNMENT
    )
    run_id: Annotated[bytes, At("16s", "the run, the same in every segment and frame")]
    segment_no: Annotated[int, At("Q", "1 for the first segment, then one more each")]
    first_seq: Annotated[int, At("Q", "the sequence number the next event gets when this segment begins")]
    created_wall_ns: Annotated[int, At("q", "wall clock at creation, ns since 1970, as read")]
    boot_id: Annotated[bytes, At("16s", "the kernel's boot id, to which monotonic stamps belong")]
    previous_segment_no: Annotated[int, At("Q", "0 in the first segment")]
    previous_length: Annotated[int, At("Q", "where the predecessor's valid frames end")]
    previous_last_offset: Annotated[int, At("Q", "offset of the predecessor's last valid frame")]
    previous_last_seq: Annotated[int, At("Q", "the last sequence number in or before the predecessor")]
    previous_chain: Annotated[bytes, At("32s", "chain value after the predecessor's last valid frame")]
    context_hash: Annotated[bytes, At("32s", "hash of the execution context the run was started in")]
    segment_bytes: Annotated[int, At("Q", "length of this file")]
    codec: Annotated[int, At("H", "1: bodies are msgpack")] = CODEC_MSGPACK
    hash: Annotated[int, At("H", "1: the chain is BLAKE3, 32 bytes")] = HASH_BLAKE3
    header_crc: Annotated[int, At("I", "CRC-32C of bytes 0 to 251", 64)] = 0


# The reasons for some fields of a frame:
#   offset, segment_no, run_id   a block that was written or copied to the wrong place is not accepted as a frame
#   acked_seq                    today it follows from the order; a writer with several writes in flight will need it
#   previous_offset              walking backwards: the last events can be read without the first
#   ..._max                      labels can decrease (clocks are set, steps are re-run); maxima can be searched
#   body_crc before header_crc   the header's checksum covers the body's, so a good header also proves that value
class EntryHeader(msgspec.Struct, frozen=True, gc=False):
    """The fields of an entry header, in the order of its bytes, so that it can be made from an unpacked tuple."""

    magic: Annotated[bytes, At("8s", "`ESPERENT`")]
    version: Annotated[int, At("H", "2")]
    header_bytes: Annotated[int, At("H", "256")]
    kind: Annotated[int, At("H", "what the body is, see the kinds")]
    flags: Annotated[int, At("H", "see the flags; unknown bits are refused")]
    first_seq: Annotated[int, At("Q", "sequence number of the first event, or of the next one if count is 0")]
    count: Annotated[int, At("I", "number of events, 1 to 4096; 0 in every kind but EVENTS")]
    body_bytes: Annotated[int, At("I", "length of the body without the padding")]
    acked_seq: Annotated[int, At("Q", "highest sequence number that was durable before this frame was written")]
    offset: Annotated[int, At("Q", "this frame's own offset in its file")]
    previous_offset: Annotated[int, At("Q", "offset of the frame before it in this file, 0 for the first")]
    segment_no: Annotated[int, At("Q", "the segment it belongs to")]
    run_id: Annotated[bytes, At("16s", "the run it belongs to")]
    wall_ns: Annotated[int, At("q", "wall clock, ns since 1970, as read")]
    mono_ns: Annotated[int, At("q", "monotonic clock, ns, within the boot")]
    epoch: Annotated[int, At("Q", "label: the epoch of its last event")]
    step: Annotated[int, At("Q", "label: the step of its last event")]
    wall_ns_max: Annotated[int, At("q", "highest wall_ns of any EVENTS frame up to this one")]
    epoch_max: Annotated[int, At("Q", "highest epoch label of any EVENTS frame up to this one")]
    step_max: Annotated[int, At("Q", "highest step label of any EVENTS frame up to this one")]
    previous_chain: Annotated[bytes, At("32s", "chain value before this frame")]
    body_crc: Annotated[int, At("I", "CRC-32C of the body", 80)]
    header_crc: Annotated[int, At("I", "CRC-32C of bytes 0 to 251")]

    @property
    def last_seq(self) -> int:
        """The last sequence number in or before this frame."""
        return self.first_seq + self.count - 1


class Field(NamedTuple):
    """One row of a byte table. `code` is a format code of the struct module, with its repeat count."""

    name: str
    offset: int
    size: int
    code: str
    meaning: str


def _table_of(header: type[msgspec.Struct]) -> tuple[Field, ...]:
    """Return the byte table of a header: its fields, and the zeros between them."""
    rows, offset = [], 0
    for name, kind in get_type_hints(header, include_extras=True).items():
        (at,) = kind.__metadata__
        for field, code, meaning in (("reserved", f"{at.zeros}x", "zero"), (name, at.code, at.meaning)):
            if size := struct.calcsize(f"<{code}"):
                rows.append(Field(field, offset, size, code, meaning))
                offset += size
    return tuple(rows)


SEGMENT_FIELDS: Final = _table_of(SegmentHeader)
ENTRY_FIELDS: Final = _table_of(EntryHeader)


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
