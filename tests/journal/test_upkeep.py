"""Verify, repair and export: their messages, their changes, and what stays the same byte for byte."""

from __future__ import annotations

import base64
import json
import math
import shutil

import msgspec
import pytest

from journal import (
    Files,
    Journal,
    JournalDamaged,
    JournalLocked,
    JournalMissing,
    Reader,
    RepairAction,
    Verdict,
    export_json_lines,
    export_raw_lines,
    plan_repair,
    repair,
    verify,
)
from journal.format import CRC_STRUCT
from journal.frame import crc32c
from tests.journal.make import begin, commit, event, numbered, read_all

SEGMENT = 65_536
encode = msgspec.msgpack.encode


@pytest.fixture
def folder(tmp_path):
    """A journal of a few segments that was closed in order."""
    path = tmp_path / "journal"
    with begin(Journal.open(path, segment_bytes=SEGMENT)) as journal:
        for n in range(40):
            commit(journal, [event(n)], step=n)
    return path


def edit(path, offset, data):
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def make_torn(folder):
    """Leave the journal as a crash inside a write does. Return the acknowledged events."""
    with Journal.open(folder, segment_bytes=SEGMENT) as journal:
        begin(journal)
        place = journal.statistics().segment_offset
        path = max(folder.glob("*.wal"))
        commit(journal, [event(99, size=6000)])
        journal.abandon_in_child()
    assert path == max(folder.glob("*.wal"))
    edit(path, place + 4096, bytes(8192))
    return numbered(event(n) for n in range(40))


def test_a_clean_journal_verifies_with_its_counts(folder):
    """Segments, frames, events, bytes, the last sequence number and the chain are reported."""
    report = verify(folder)

    assert (report.verdict, report.problem) == (Verdict.CLEAN, None)
    assert (report.segments, report.events, report.last_seq) == (len(list(folder.glob("*.wal"))), 40, 40)
    assert report.frames == 40 + 2 * report.segments  # captures, seals, and the watermark if there is no seal yet
    assert len(report.chain) == 64
    assert plan_repair(folder).action is RepairAction.NOTHING


@pytest.mark.parametrize("what", ["padding", "head", "rest", "seal's rest"])
def test_verify_demands_zeros_wherever_nothing_is_written(folder, what):
    """One bit in padding, after a header, in the unused rest or after a seal is found and named."""
    first, *_, last = sorted(folder.glob("*.wal"))
    path = first if what == "seal's rest" else last
    offset = {"padding": 3 * 4096 - 1, "head": 300, "rest": SEGMENT - 1, "seal's rest": SEGMENT - 1}[what]
    edit(path, offset, b"\x01")

    report = verify(folder)

    assert report.verdict in (Verdict.DAMAGED, Verdict.TORN_TAIL)
    assert report.problem is not None
    assert report.problem.file == path


def test_verify_names_an_edit_whose_checksums_were_made_good(folder):
    """Tampering: the checksums are recomputed, but the hash chain is not."""
    path = max(folder.glob("*.wal"))
    image = bytearray(path.read_bytes())
    at = 2 * 4096
    length = int.from_bytes(image[at + 28 : at + 32], "little")
    image[at + 256 + 8] ^= 1  # a letter of the type
    image[at + 248 : at + 252] = CRC_STRUCT.pack(crc32c(bytes(image[at + 256 : at + 256 + length])))
    image[at + 252 : at + 256] = CRC_STRUCT.pack(crc32c(bytes(image[at : at + 252])))
    path.write_bytes(image)

    report = verify(folder)

    assert report.verdict is Verdict.TAMPERED
    assert report.problem is not None
    assert report.problem.damage == "chain"
    with pytest.raises(JournalDamaged, match="chain"):
        Journal.open(folder)


def test_damage_in_a_sealed_segment_is_refused_on_opening(folder):
    """Not only the newest segment is read: a flipped bit in the first of several is named."""
    first = min(folder.glob("*.wal"))
    edit(first, 4 * 4096 + 100, b"\xff\xff")

    with pytest.raises(JournalDamaged) as refused:
        Journal.open(folder)

    assert (refused.value.path, refused.value.offset, refused.value.seq) == (first, 4 * 4096, 3)


@pytest.mark.parametrize("deed", ["swapped", "copied"])
def test_frames_in_the_wrong_place_are_refused(folder, deed):
    """Two frames are swapped, or one is copied over the next: intact frames in the wrong place."""
    path = max(folder.glob("*.wal"))
    image = path.read_bytes()
    one, two = image[2 * 4096 : 3 * 4096], image[3 * 4096 : 4 * 4096]
    edit(path, 2 * 4096, two + one if deed == "swapped" else one + one)

    with pytest.raises(JournalDamaged) as refused:
        Journal.open(folder)

    assert refused.value.damage == "misplaced"


@pytest.mark.parametrize("deed", ["missing", "swapped", "renamed", "other run", "duplicate"])
def test_segments_that_do_not_belong_together_are_refused(folder, tmp_path, deed):
    """A missing, renamed, foreign or duplicate segment is named, and no byte is written."""
    first, second, *_ = sorted(folder.glob("*.wal"))
    if deed == "missing":
        second.unlink()
    elif deed == "swapped":
        shutil.copy(first, second)
    elif deed == "renamed":
        second.rename(second.with_name(second.name.replace("-0", "-9")))
    elif deed == "duplicate":
        shutil.copy(second, second.with_name(second.name.replace("-0", "-9")))
    else:
        with Journal.open(tmp_path / "other", segment_bytes=SEGMENT) as other:
            other.begin(run_id=bytes(16), context_hash=bytes(32), capture=bytes, wall_ns=1, boot_id=bytes(16))
            for n in range(40):
                commit(other, [event(n)], step=n)
        shutil.copy(sorted((tmp_path / "other").glob("*.wal"))[1], second)

    assert verify(folder).verdict in (Verdict.DAMAGED, Verdict.TAMPERED)
    with pytest.raises(JournalDamaged):
        Journal.open(folder)
    assert plan_repair(folder).action is RepairAction.REFUSED


def test_repair_is_planned_first_and_cuts_only_what_was_never_acknowledged(folder):
    """The plan changes nothing. The repair cuts the torn tail, keeps a copy, and leaves a clean journal."""
    acked = make_torn(folder)
    before = {path: path.read_bytes() for path in folder.glob("*.wal")}

    plan = plan_repair(folder)
    assert {path: path.read_bytes() for path in folder.glob("*.wal")} == before
    done = repair(folder)

    assert (plan.action, plan.seq, plan.quarantine) == (RepairAction.CUT_TAIL, 41, None)
    assert done == msgspec.structs.replace(plan, quarantine=done.quarantine)
    assert done.quarantine is not None
    assert done.quarantine.read_bytes() == before[done.file][done.offset : done.offset + done.bytes_cut]
    assert verify(folder).verdict is Verdict.CLEAN
    assert read_all(folder, Files())[0] == acked
    assert repair(folder).action is RepairAction.NOTHING


def test_repair_refuses_to_lose_what_was_acknowledged(folder):
    """Damage in an acknowledged frame: the refusal says what is still possible, and nothing changes."""
    path = max(folder.glob("*.wal"))
    edit(path, 2 * 4096 + 270, b"\xff\xff")
    before = path.read_bytes()

    plan = repair(folder)

    assert plan.action is RepairAction.REFUSED
    assert plan.problem is not None
    assert (plan.problem.file, plan.problem.offset, plan.problem.damage) == (path, 2 * 4096, "frame")
    assert "Reading, searching and exporting work" in plan.sentence
    assert path.read_bytes() == before


def test_repair_is_refused_while_a_writer_lives(folder):
    """The writer holds the lock; planning needs none."""
    with begin(Journal.open(folder, segment_bytes=SEGMENT)):
        assert plan_repair(folder).action is RepairAction.NOTHING
        with pytest.raises(JournalLocked):
            repair(folder)


def test_where_there_is_no_journal_nothing_is_verified_repaired_or_made(tmp_path):
    """A wrong path is an error of its own, and no lock file is created."""
    for act in (verify, plan_repair, repair):
        with pytest.raises(JournalMissing):
            act(tmp_path / "nowhere")
    assert list(tmp_path.iterdir()) == []


STRANGE = [
    encode({"type": "FromTheFuture", "wall": 1, "never_seen": {"deep": [1, 2, {"x": None}]}, "blob": b"\x00\xff"}),
    encode({"type": "Stepped", "loss": math.nan, "losses": [1.0, math.inf, -math.inf], "fine": 1.5}),
    encode({"type": "Extended", "when": msgspec.msgpack.Ext(42, b"custom"), 7: "an integer key", b"k": 1}),
    b"\x80",
    b"\xc7\x03\x7fabc",  # not even a map: an extension by itself
    b"\x81\xa4type\xd9\x03abc",  # the same meaning in more bytes than needed: not to be normalised
    encode({"type": "Big", "n": 2**64 - 1, "m": -(2**63)}),
]


@pytest.fixture
def strange(tmp_path):
    """A journal of events that this program does not know."""
    path = tmp_path / "strange"
    with begin(Journal.open(path, segment_bytes=SEGMENT)) as journal:
        for one in STRANGE:
            commit(journal, [one, event(0)])
    return path, [one for pair in STRANGE for one in (pair, event(0))]


def test_unknown_types_and_fields_survive_copy_and_repair(strange, tmp_path):
    """After cp, a torn write and a repair every byte of unknown events is unchanged."""
    path, written = strange
    copy = tmp_path / "copy"
    shutil.copytree(path, copy)
    with Journal.open(copy, segment_bytes=SEGMENT) as journal:
        begin(journal)
        place = journal.statistics().segment_offset
        commit(journal, [event(99, size=6000)])
        journal.abandon_in_child()
    edit(max(copy.glob("*.wal")), place + 4096, bytes(8192))

    assert repair(copy).action is RepairAction.CUT_TAIL
    assert read_all(copy, Files())[0] == numbered(written)


def test_a_raw_export_gives_every_byte_back(strange):
    """The lines are JSON, and hold the exact bytes and labels of the entries."""
    path, written = strange
    lines: list[str] = []
    with Reader(path) as reader:
        count = export_raw_lines(reader, lines.append)
        again = list(reader.seek(seq=1))

    assert count == len(written)
    found = [json.loads(line) for line in lines]
    assert [base64.b64decode(one.pop("raw"), validate=True) for one in found] == written
    assert [tuple(one.values()) for one in found] == [(e.seq, e.wall_ns, e.epoch, e.step) for e in again]


def test_a_readable_export_is_json_and_keeps_what_it_does_not_know(strange):
    """Every line is strict JSON: unknown fields unchanged, bytes as hex, words for numbers that are not finite."""
    path, _ = strange
    lines: list[str] = []
    with Reader(path) as reader:
        export_json_lines(reader, lines.append)
    events = [json.loads(line, parse_constant=pytest.fail)["event"] for line in lines][::2]

    assert events[0] == {
        "type": "FromTheFuture", "wall": 1, "never_seen": {"deep": [1, 2, {"x": None}]}, "blob": "00ff"
    }  # fmt: skip
    assert events[1] == {
        "type": "Stepped", "loss": None, "loss_state": "nan", "fine": 1.5,
        "losses": [1.0, None, None], "losses_state": ["finite", "pos_inf", "neg_inf"],
    }  # fmt: skip
    assert events[2] == {
        "type": "Extended", "when": {"ext": 42, "data": b"custom".hex()}, "7": "an integer key", "6b": 1
    }  # fmt: skip
    assert events[3] == {}
    assert events[4] == {"ext": 127, "data": b"abc".hex()}
    assert events[6] == {"type": "Big", "n": 2**64 - 1, "m": -(2**63)}


def test_lines_carry_number_time_epoch_and_step(folder):
    """Timestamps are RFC 3339 with microseconds."""
    lines: list[str] = []
    with Reader(folder) as reader:
        export_json_lines(reader.tail(1), lines.append)

    line = json.loads(lines[0])
    assert (line["seq"], line["wall"], line["epoch"], line["step"]) == (40, "1970-01-01T00:00:39.000000Z", 3, 39)
    assert line["event"]["n"] == 39
    assert lines[0].endswith("\n")
