"""docs/journal-format.md agrees with the code, and is enough to write a reader."""

from __future__ import annotations

import re

import msgspec
import pytest

from journal import FrameKind, Journal
from journal.format import ENTRY_FIELDS, RESERVED_KINDS, SEGMENT_FIELDS, EntryFlag, Field
from journal.frame import decode_segment_header, encode_segment_header, parse_entry
from journal.tail import CASES, Decision
from tests.journal import from_the_page
from tests.journal.make import FaultyFiles, begin, commit, event

TYPES = {"H": "u16", "I": "u32", "Q": "u64", "q": "i64"}


def row(field: Field) -> tuple[int, int, str, str, str]:
    kind = "zero" if field.code.endswith("x") else TYPES.get(field.code, "bytes")
    return field.offset, field.size, field.name, kind, field.meaning


@pytest.mark.parametrize(("heading", "fields"), [("Segment header", SEGMENT_FIELDS), ("Entry header", ENTRY_FIELDS)])
def test_the_byte_tables_are_those_of_the_code(heading, fields):
    """The page has exactly the code's fields, with the same offset, size, type and meaning."""
    assert from_the_page.byte_table(heading) == [row(field) for field in fields]


@pytest.mark.parametrize("fields", [SEGMENT_FIELDS, ENTRY_FIELDS])
def test_the_fields_fill_256_bytes_without_gap_or_overlap(fields):
    """Each field begins where the one before it ends, and the last one ends at 256."""
    ends = [field.offset + field.size for field in fields]

    assert [field.offset for field in fields] == [0, *ends[:-1]]
    assert ends[-1] == 256


def test_kinds_flags_and_cases_are_those_of_the_code():
    """The page's tables of kinds, reserved kinds, flags and cases list what the code has."""
    page = from_the_page.PAGE.read_text(encoding="utf-8")
    kinds = re.findall(r"^\| (\d+) \| ([A-Z_]+) \| (?:1 to 4096|0) \|", page, re.MULTILINE)
    flags = re.findall(r"^\| (\d+) \| ([A-Z_]+) \| a reader", page, re.MULTILINE)
    cases = re.findall(r"^\| ([A-Z]) \| .* \| (.*) \|$", page, re.MULTILINE)

    assert kinds == [(str(kind.value), kind.name) for kind in FrameKind]
    assert all(f"{number} ({name})" in page for number, name in RESERVED_KINDS.items())
    assert flags == [(str(flag.value.bit_length() - 1), flag.name) for flag in EntryFlag]
    assert [letter for letter, _ in cases] == [case.letter for case in CASES]
    for case, (_, decision) in zip(CASES, cases, strict=True):
        words = {Decision.END: "ends", Decision.TORN: "torn", Decision.TOO_NEW: "too new", Decision.DAMAGED: "damaged"}
        assert words[case.decision] in decision
        assert case.damage is None or f"`{case.damage.value}`" in decision


def test_a_reader_written_from_the_page_reads_what_was_written(tmp_path):
    """Rotations, a failed write and a clean stop: the second reader returns the same events."""
    files = FaultyFiles("pwrite", 0, 0, "short")
    written = [event(n, size=n * 100) for n in range(25)]
    sizes = {"segment_bytes": 16 * 512, "alignment": 512}

    def reached(point: str) -> None:
        # The write of a frame, once: not one of those that fill the next segment's file with zeros.
        if point == "commit" and journal.last_seq == 7 and not files.first:
            files.first = files.last = files.count + 1

    with begin(Journal.open(tmp_path, **sizes, files=files, reached=reached)) as journal:
        for n, one in enumerate(written):
            commit(journal, [one], step=n)
        assert journal.statistics().poisoned == 1

    found = from_the_page.read(tmp_path)

    assert found == [(seq, msgspec.msgpack.decode(one)) for seq, one in enumerate(written, start=1)]
    assert len(list(tmp_path.glob("*.wal"))) > 3


def test_a_reader_written_from_the_page_finds_a_flipped_bit(tmp_path):
    """The checks that the page requires find damage."""
    with begin(Journal.open(tmp_path, segment_bytes=16 * 512, alignment=512)) as journal:
        commit(journal, [event(0)])
    (path,) = tmp_path.glob("*.wal")
    image = bytearray(path.read_bytes())
    image[2 * 512 + 260] ^= 4
    path.write_bytes(image)

    with pytest.raises(ValueError, match="body"):
        from_the_page.read(tmp_path)


def test_headers_survive_encoding_and_decoding(tmp_path):
    """A segment header is decoded to the values it was made from, an entry header likewise."""
    with begin(Journal.open(tmp_path, segment_bytes=16 * 512, alignment=512)) as journal:
        commit(journal, [event(0)], step=77)
    (path,) = tmp_path.glob("*.wal")
    image = path.read_bytes()
    header = decode_segment_header(image[:256])
    entry = parse_entry(image[1024:1280])

    assert encode_segment_header(header) == image[:256]
    assert (entry.first_seq, entry.count, entry.step, entry.offset) == (1, 1, 77, 1024)
