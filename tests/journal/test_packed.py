"""The format of a packed segment: a file that is none, or makes false claims, is refused."""

from __future__ import annotations

import struct
import tracemalloc

import pytest
import zstandard
from google_crc32c import value as crc32c

from journal import Damage, Journal, JournalTooNew, Verdict, verify
from journal.packed import PIECE_BYTES
from tests.journal.make import MemoryFiles
from tests.journal.test_packing import SEGMENT, fill, pack


def test_a_packed_segment_cut_short_or_made_longer_is_damaged(tmp_path):
    """It is damaged at every length except its own."""
    fill(tmp_path, count=25)
    pack(tmp_path)
    start = MemoryFiles({path: path.read_bytes() for path in tmp_path.iterdir()})
    victim = min(path for path in start.images if path.suffix == ".zst")
    image = bytes(start.images[victim])
    for length in (*range(0, len(image), 97), len(image) + 1, len(image) + 4096):
        files = MemoryFiles(start.snapshot())
        files.images[victim] = bytearray(image[:length].ljust(length, b"\0"))
        assert verify(tmp_path, files=files).problem.damage == "packed"


LIES = ("no piece has bytes", "a piece is enormous", "the segment is longer", "a length is wrong", "another frame")


@pytest.mark.parametrize("lie", LIES)
def test_a_table_with_a_good_checksum_must_describe_its_segment(tmp_path, lie):
    """If another program wrote it, no memory is allocated by its numbers."""
    fill(tmp_path, count=25)
    pack(tmp_path)
    victim = min(tmp_path.glob("*.zst"))
    image = bytearray(victim.read_bytes())
    at, table = len(image) - 32, len(image) - 48  # the trailer; the skippable frame with its one row
    assert struct.unpack_from("<QII", image, at) == (SEGMENT, PIECE_BYTES, 1)
    if lie == LIES[0]:
        struct.pack_into("<I", image, at + 8, 0)
    elif lie == LIES[1]:
        struct.pack_into("<I", image, at + 8, (1 << 26) + 1)
    elif lie == LIES[2]:
        struct.pack_into("<Q", image, at, 2 * PIECE_BYTES)
    elif lie == LIES[3]:
        struct.pack_into("<I", image, table + 8, table - 1)
    else:
        struct.pack_into("<I", image, table, 0x184D2A50)
    struct.pack_into("<I", image, len(image) - 4, crc32c(bytes(image[table:-4])))
    victim.write_bytes(image)

    problem = verify(tmp_path).problem
    assert problem.damage == "packed"
    assert "does not describe it" in problem.sentence


def test_a_packed_segment_of_a_newer_version_is_refused_as_newer(tmp_path):
    """If the checksum is right, an unknown version is reported as newer, not as damage."""
    fill(tmp_path, count=25)
    pack(tmp_path)
    victim = min(tmp_path.glob("*.zst"))
    image = bytearray(victim.read_bytes())
    struct.pack_into("<I", image, len(image) - 16, 2)
    struct.pack_into("<I", image, len(image) - 4, crc32c(bytes(image[len(image) - 48 : -4])))
    victim.write_bytes(image)

    assert verify(tmp_path).verdict is Verdict.TOO_NEW
    with pytest.raises(JournalTooNew, match="packed by a newer version"):
        Journal.open(tmp_path, segment_bytes=SEGMENT)


def test_a_piece_that_unpacks_to_more_than_it_should_takes_no_memory(tmp_path):
    """A few kilobytes can claim gigabytes with right checksums: the claim alone leads to the refusal."""
    fill(tmp_path, count=25)
    pack(tmp_path)
    victim = min(tmp_path.glob("*.zst"))
    bomb = zstandard.ZstdCompressor().compress(bytes(64 << 20))
    table = victim.read_bytes()[-48:]
    table = table[:8] + struct.pack("<II", len(bomb), crc32c(bomb)) + table[16:-4]
    victim.write_bytes(bomb + table + struct.pack("<I", crc32c(table)))
    tracemalloc.start()
    try:
        report = verify(tmp_path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert (report.verdict, report.problem.damage) == (Verdict.DAMAGED, Damage.PACKED)
    assert "does not unpack" in report.problem.sentence
    assert peak < 16 << 20
