"""A second reader, written from docs/journal-format.md alone.

It uses `struct`, and from PyPI `msgpack`, `zstandard` and BLAKE3. It imports nothing of the journal. It reads a journal
that is not being written, and returns its events.
"""

from __future__ import annotations

import re
import struct
from pathlib import Path

import msgpack
import zstandard
from blake3 import blake3

PAGE = Path(__file__).parents[2] / "docs" / "journal-format.md"
TYPES = {"u16": "<H", "u32": "<I", "u64": "<Q", "i64": "<q"}


def byte_table(heading: str) -> list[tuple[int, int, str, str, str]]:
    """Return the rows of the byte table under a heading: offset, size, field, type, meaning."""
    section = PAGE.read_text(encoding="utf-8").split(f"### {heading}\n")[1].split("\n#")[0]
    rows = re.findall(r"^\| (\d+) \| (\d+) \| `(\w+)` \| (\w+) \| (.*) \|$", section, re.MULTILINE)
    return [(int(offset), int(size), name, kind, meaning) for offset, size, name, kind, meaning in rows]


def parse(heading: str, data: bytes) -> dict[str, object]:
    """Return the fields of a header, by the page's table."""
    fields: dict[str, object] = {}
    for offset, size, name, kind, _ in byte_table(heading):
        raw = data[offset : offset + size]
        fields[name] = struct.unpack(TYPES[kind], raw)[0] if kind in TYPES else raw
    return fields


def crc32c(data: bytes) -> int:
    """CRC-32C, bit by bit: reflected polynomial, all ones before and after."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def read(folder: Path) -> list[tuple[int, object]]:
    """Return every event of a journal with its sequence number. Raises ValueError if the page requires an error."""
    events: list[tuple[int, object]] = []
    plain = [path for path in folder.iterdir() if path.name.endswith(".wal")]
    packed = [path for path in folder.glob("*.wal.zst") if path.with_suffix("") not in plain]
    images = [unpack(path) for path in sorted([*plain, *packed], key=lambda path: path.name)]
    headers = [parse("Segment header", image) for image in images]
    for number, (image, header) in enumerate(zip(images, headers, strict=True), start=1):
        check(header["magic"] == b"ESPERWAL" and crc32c(image[:252]) == header["header_crc"], "segment header")
        check(header["segment_no"] == number and len(image) == header["segment_bytes"], "segment")
        end = headers[number]["previous_length"] if number < len(headers) else None
        events += frames(image, header, end)
    return events


def unpack(path: Path) -> bytes:
    """Return a segment's bytes; unpack a packed one as any Zstandard library does."""
    if path.suffix != ".zst":
        return path.read_bytes()
    with zstandard.ZstdDecompressor().stream_reader(path.open("rb"), read_across_frames=True) as stream:
        return stream.read()


def frames(image: bytes, segment: dict, end: int | None) -> list[tuple[int, object]]:
    events: list[tuple[int, object]] = []
    offset, previous, chain = segment["alignment"], 0, blake3(image[:256]).digest()
    seq = segment["first_seq"]
    while offset != end and (end is not None or any(image[offset:])):
        head = image[offset : offset + 256]
        entry = parse("Entry header", head)
        body = image[offset + 256 : offset + 256 + entry["body_bytes"]]
        check(entry["magic"] == b"ESPERENT" and crc32c(head[:252]) == entry["header_crc"], "entry header")
        check(crc32c(body) == entry["body_crc"], "body")
        place = (entry["run_id"], entry["segment_no"], entry["offset"], entry["previous_offset"], entry["first_seq"])
        check(place == (segment["run_id"], segment["segment_no"], offset, previous, seq), "place")
        check(entry["previous_chain"] == chain, "chain")
        if entry["kind"] == 1:
            found = msgpack.unpackb(body)
            check(len(found) == entry["count"], "count")
            events += enumerate(found, start=seq)
        chain, previous, seq = blake3(head + body).digest(), offset, seq + entry["count"]
        offset += -(-(256 + len(body)) // segment["alignment"]) * segment["alignment"]
    return events


def check(good: bool, what: str) -> None:
    if not good:
        raise ValueError(what)
