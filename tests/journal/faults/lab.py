"""Journals in memory that tests take apart and forge, and the answers of every reader."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from blake3 import blake3
from google_crc32c import value as crc32c

from journal import JournalDamaged, JournalError, Verdict, verify
from journal.format import CRC_STRUCT, ENTRY_STRUCT, HEADER_BYTES, EntryHeader, FrameKind, SegmentHeader, aligned
from journal.frame import Flaw, decode_segment_header, encode_segment_header, first_chain, parse_entry
from tests.journal.faults.harness import Acks, Plan, begin_journal, judge_records, open_journal, readable, write
from tests.journal.make import MemoryFiles

FOLDER = Path("/journal")
Images = dict[Path, bytes]
PLAN = Plan(seed="lab", turns=40, segment_bytes=14 * 512, alignment=512, longest=700, packs=False)


class Piece(msgspec.Struct, frozen=True):
    """One frame in an image: its place and its content."""

    offset: int
    end: int
    header: EntryHeader
    body: bytes

    @property
    def bytes(self) -> bytes:
        """Return header and body, without the padding."""
        return (
            ENTRY_STRUCT.pack(*msgspec.structs.astuple(self.header)[:-1])
            + CRC_STRUCT.pack(self.header.header_crc)
            + self.body
        )

    @property
    def padded(self) -> bytes:
        """Return the frame with its padding."""
        return self.bytes.ljust(self.end - self.offset, b"\0")


def make_journal(plan: Plan = PLAN, *, close: bool = True) -> tuple[Images, int]:
    """Return the images and the last number of a journal of several segments, closed or as after a crash."""
    files = MemoryFiles()
    journal = open_journal(FOLDER, plan, files)
    begin_journal(journal)
    write(journal, plan, Acks())
    if close:
        journal.close()
    images = {path: image for path, image in files.snapshot().items() if path.suffix == ".wal"}
    return dict(sorted(images.items())), journal.last_seq


def instead(pieces: Sequence[Piece], victim: Piece, act: Callable[[Piece], Piece]) -> list[Piece]:
    """Return the pieces with one of them replaced by the results of `act`."""
    return [act(one) if one == victim else one for one in pieces]


def resealed(seal: Piece, **changes: object) -> Piece:
    """Return a seal with another content and right checksums."""
    return forged(seal, msgspec.msgpack.encode({**msgspec.msgpack.decode(seal.body), **changes}))


def pieces_of(image: bytes) -> list[Piece]:
    """Return the frames of a segment in order."""
    header = segment_header(image)
    found, offset = [], header.alignment
    while offset + HEADER_BYTES <= len(image):
        entry = parse_entry(image, offset)
        if isinstance(entry, Flaw):
            break
        body = image[offset + HEADER_BYTES : offset + HEADER_BYTES + entry.body_bytes]
        end = offset + aligned(HEADER_BYTES + entry.body_bytes, header.alignment)
        found.append(Piece(offset, end, entry, body))
        offset = end
    return found


def events_in(image: bytes) -> list[Piece]:
    """Return the frames with events."""
    return [piece for piece in pieces_of(image) if piece.header.kind == FrameKind.EVENTS]


def segment_header(image: bytes) -> SegmentHeader:
    """Return the header of a segment that has one."""
    header = decode_segment_header(image[:HEADER_BYTES])
    if isinstance(header, Flaw):
        raise TypeError(f"no segment header: {header}")
    return header


def forged(piece: Piece, body: bytes | None = None, **changes: object) -> Piece:
    """Return the frame with other fields or another body, and right checksums."""
    body = piece.body if body is None else body
    header = msgspec.structs.replace(piece.header, body_bytes=len(body), body_crc=crc32c(body), **changes)
    crc = crc32c(ENTRY_STRUCT.pack(*msgspec.structs.astuple(header)[:-1]))
    return Piece(piece.offset, piece.end, msgspec.structs.replace(header, header_crc=crc), body)


def put(image: bytes, offset: int, data: bytes) -> bytes:
    """Return the image with these bytes at an offset, its length unchanged."""
    return (image[:offset] + data + image[offset + len(data) :])[: len(image)]


def put_pieces(image: bytes, pieces: Sequence[Piece]) -> bytes:
    """Return the image with these frames, each at its place."""
    for piece in pieces:
        image = put(image, piece.offset, piece.padded)
    return image


def forged_header(image: bytes, **changes: object) -> bytes:
    """Return the image with other fields in its segment header, and a right checksum."""
    return put(image, 0, encode_segment_header(msgspec.structs.replace(segment_header(image), **changes)))


def rechained(image: bytes, pieces: Sequence[Piece]) -> tuple[bytes, bytes]:
    """Return the image with these frames and a recomputed chain, as a thorough forger does, and its end."""
    chain = first_chain(image[:HEADER_BYTES])
    for piece in pieces:
        body = piece.body
        seal = msgspec.msgpack.decode(body) if piece.header.kind == FrameKind.SEAL else None
        if isinstance(seal, dict):
            body = msgspec.msgpack.encode({**seal, "chain": chain})
        again = forged(piece, body, previous_chain=chain)
        image = put(image, again.offset, again.padded)
        chain = blake3(again.bytes).digest()
    return image, chain


def rewritten(images: Images, path: Path, pieces: Sequence[Piece]) -> Images:
    """Return the journal with these frames in one segment, and all later chain values and links recomputed."""
    forged_images: Images = {}
    chain = None
    for name, image in images.items():
        if chain is not None:
            image = forged_header(image, previous_chain=chain)  # noqa: PLW2901 -- the image goes on changed
        elif name != path:
            forged_images[name] = image
            continue
        forged_images[name], chain = rechained(image, pieces if name == path else pieces_of(image))
    return forged_images


class Said(msgspec.Struct, frozen=True):
    """The answers of opening, reading and verifying; `counts` has `lost` and `wrong`."""

    opened: str
    verdict: Verdict
    damage: str
    counts: dict[str, int]


def ask(images: Images, last: int, plan: Plan = PLAN) -> Said:
    """Open, read and verify changed images. All events up to `last` were acknowledged."""
    counts: Counter[str] = Counter(lost=0, wrong=0)
    opened = "opened"
    try:
        journal = open_journal(FOLDER, plan, MemoryFiles(images))
    except JournalError as error:
        opened = error.damage.value if isinstance(error, JournalDamaged) else type(error).__name__
    else:
        try:
            counts["lost"] += max(0, last - judge_records(journal.records(), counts, longest=plan.longest))
        except JournalError as error:
            opened = f"opened, and then {error}"
        journal.close()
    readable(FOLDER, plan, counts, MemoryFiles(images))
    report = verify(FOLDER, files=MemoryFiles(images))
    return Said(opened, report.verdict, report.problem.damage if report.problem else "", dict(counts))
