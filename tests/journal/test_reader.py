"""The reader: seeking, the last entries, marks and captures, and damage."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from journal import (
    BatchRefused,
    Damage,
    Files,
    FrameKind,
    Journal,
    JournalDamaged,
    JournalMissing,
    JournalTooNew,
    Mark,
    Reader,
    Tabulation,
    Verdict,
    verify,
)
from journal.frame import crc32c
from journal.packing import Packer
from tests.journal.make import SECOND_NS, MemoryFiles, begin, commit, entries, event, numbered, read_all

FOLDER = Path("/journal")


@pytest.fixture(scope="module")
def long_journal():
    """A journal of many sealed segments and an open one, with batches of many sizes and decreasing labels."""
    rng = random.Random(7)
    files = MemoryFiles()
    labels = []
    with begin(Journal.open(FOLDER, segment_bytes=400_000, alignment=512, files=files)) as journal:
        step = 0
        for _ in range(1500):
            step = max(1, step - 40) if rng.random() < 0.01 else step + 1
            count = rng.choice((1, 1, 1, 3, 50))
            wall_ns = step * SECOND_NS + rng.randrange(5 * SECOND_NS)
            size = rng.choice((0, 100, 3000))
            first = commit(journal, [event(n, size) for n in range(count)], step=step, wall_ns=wall_ns)
            labels += [(seq, step // 10, step, wall_ns) for seq in range(first, first + count)]
    assert len(files.images) > 5
    return files.snapshot(), labels


def first_reaching(labels, column, value):
    """Search the slow way: return the first entry whose label reaches the value, or None."""
    return next((row[0] for row in labels if row[column] >= value), None)


@pytest.mark.parametrize(("key", "column"), [("seq", 0), ("epoch", 1), ("step", 2), ("time_ns", 3)])
def test_seeking_finds_what_reading_everything_finds(long_journal, key, column, seed):
    """Sequence numbers, epochs, steps and times, inside, at the edges of and outside the range."""
    images, labels = long_journal
    rng = random.Random(seed)
    values = sorted(row[column] for row in labels)
    drawn = [rng.choice(values) + rng.choice((-1, 0, 1)) for _ in range(60)]
    with Reader(FOLDER, files=MemoryFiles(images)) as reader:
        for value in [1, values[0], values[-1], values[-1] + 1, *drawn]:
            found = next(iter(reader.seek(**{key: value})), None)
            assert (found.seq if found else None) == first_reaching(labels, column, value), (key, value)


def test_reading_goes_on_from_a_place_to_the_end(long_journal):
    """After a seek all later entries follow, over segment borders, without a gap."""
    images, labels = long_journal
    with Reader(FOLDER, files=MemoryFiles(images)) as reader:
        for start in (1, 500, labels[-1][0] - 3):
            assert [entry.seq for entry in reader.seek(seq=start)] == list(range(start, labels[-1][0] + 1))


def test_a_reader_left_in_the_middle_of_a_batch_goes_on_there(long_journal):
    """Taking one entry at a time, with a new iterator each, misses no entry of a batch."""
    images, labels = long_journal
    with Reader(FOLDER, files=MemoryFiles(images)) as reader:
        assert [next(iter(reader)).seq for _ in range(300)] == list(range(1, 301))
        assert [entry.seq for entry in reader] == list(range(301, labels[-1][0] + 1))


@pytest.mark.parametrize("begin_at", [1, 2, 777, 10_000])
def test_what_is_not_usual_is_found_with_the_number_of_usual_events_before_it(long_journal, begin_at):
    """In frames of which no event, some or all are usual, and from the middle of a batch on."""
    images, _ = long_journal
    with Reader(FOLDER, files=MemoryFiles(images)) as reader:
        every = list(reader)
    for is_usual in (lambda head: crc32c(head) % 5 > 0, lambda _: True, lambda _: False):
        with Reader(FOLDER, files=MemoryFiles(images)) as reader:
            found = list(reader.seek(seq=begin_at).without(is_usual))
        expected, usual = [], 0
        for one in every[begin_at - 1 :]:
            if is_usual(bytes(one.event)[:32]):
                usual += 1
            else:
                expected.append((usual, one))
        assert found == expected


def test_the_last_entries_are_the_last_entries(long_journal):
    """`tail` works for any length, also beyond the journal's, and the cursor is at the end."""
    images, labels = long_journal
    last = labels[-1][0]
    with Reader(FOLDER, files=MemoryFiles(images)) as reader:
        assert reader.last_seq == last
        for count in (0, 1, 2, 20, 5000, last, last + 10):
            assert [entry.seq for entry in reader.tail(count)] == list(range(max(1, last - count + 1), last + 1))
            assert list(reader) == []


def test_the_last_entries_need_few_reads(long_journal):
    """`tail` and `last_seq` read some dozens of blocks for any length of the journal."""
    images, _ = long_journal

    class Counting(MemoryFiles):
        bytes_read = 0

        def pread(self, descriptor, length, offset):
            data = super().pread(descriptor, length, offset)
            self.bytes_read += len(data)
            return data

    files = Counting(images)
    with Reader(FOLDER, files=files) as reader:
        reader.tail(20)

    assert files.bytes_read < 3 * 400_000  # of more than five segments of that size


def test_zeros_inside_a_body_do_not_hide_what_follows(tmp_path):
    """A body with whole blocks of zeros looks like the end to a search by halving, but it is not."""
    with begin(Journal.open(tmp_path, segment_bytes=1 << 20, alignment=512)) as journal:
        commit(journal, [event(0)])
        commit(journal, [b"\xc6\x00\x08\x00\x00" + bytes(1 << 19)])  # msgpack: half a megabyte of zeros
        commit(journal, [event(2)])
        commit(journal, [event(3)])

    with Reader(tmp_path) as reader:
        assert reader.last_seq == 4
        assert [entry.seq for entry in reader.tail(3)] == [2, 3, 4]
        assert next(iter(reader.seek(seq=4))).seq == 4


def test_a_reader_at_the_end_sees_what_comes_though_it_has_read_ahead(tmp_path):
    """Its window contains the zeros after the end; iterating again reads the file instead."""
    with begin(Journal.open(tmp_path, segment_bytes=1_000_000)) as journal, Reader(tmp_path) as reader:
        for n in range(1, 6):
            commit(journal, [event(n)])
            assert entries(reader) == [(n, event(n))]
            assert entries(reader) == []


def test_records_have_marks_in_their_places(tmp_path):
    """A reader's records are those of the writer: entries and marks in order."""
    with begin(Journal.open(tmp_path, segment_bytes=65_536)) as journal:
        for n in range(40):
            commit(journal, [event(n)])
            journal.mark(FrameKind.STATE_HASH, b"\xc0", wall_ns=0, mono_ns=0)

    with Reader(tmp_path) as reader:
        records = list(reader.records(after_seq=17))
        captures = [capture.seq for capture in reader.captures()]
    with Journal.open(tmp_path, segment_bytes=65_536) as journal:
        assert list(journal.records(after_seq=17)) == records
        assert [capture.seq for capture in journal.captures()] == captures
    assert [seq for seq, _ in entries(records)] == list(range(18, 41))
    assert [r.seq for r in records if isinstance(r, Mark) and r.kind == FrameKind.STATE_HASH] == list(range(17, 41))
    assert captures[-1] == 0


def test_damage_in_the_middle_ends_reading_there_with_its_place(tmp_path):
    """All events before it are returned; then the error names file, offset, sequence number and class."""
    with begin(Journal.open(tmp_path, segment_bytes=65_536)) as journal:
        for n in range(40):
            commit(journal, [event(n)])
    path = sorted(tmp_path.glob("*.wal"))[1]
    image = bytearray(path.read_bytes())
    image[4 * 4096 + 100] ^= 1
    path.write_bytes(image)

    got, error = read_all(tmp_path, Files())

    assert isinstance(error, JournalDamaged)
    assert (error.path, error.offset, error.damage) == (path, 4 * 4096, "frame")
    assert got == numbered(event(n) for n in range(40))[: error.seq - 1]
    with Reader(tmp_path) as reader:
        assert next(iter(reader.seek(seq=40))).seq == 40  # events after the damage can still be reached


def test_a_zeroed_frame_in_the_middle_is_not_taken_for_the_end(tmp_path):
    """A reader does not stop silently at a block of zeros when frames follow."""
    with begin(Journal.open(tmp_path, segment_bytes=65_536)) as journal:
        for n in range(8):
            commit(journal, [event(n)])
    (path,) = tmp_path.glob("*.wal")
    image = bytearray(path.read_bytes())
    image[4 * 4096 : 5 * 4096] = bytes(4096)
    path.write_bytes(image)

    got, error = read_all(tmp_path, Files())

    assert len(got) == 2
    assert isinstance(error, JournalDamaged)
    assert error.seq == 3


@pytest.mark.parametrize("choice", [{}, {"seq": 1, "step": 1}])
def test_seek_takes_exactly_one_place(tmp_path, choice):
    """No position, or two, are refused."""
    begin(Journal.open(tmp_path)).close()
    with Reader(tmp_path) as reader, pytest.raises(BatchRefused, match="exactly one"):
        reader.seek(**choice)


def test_a_folder_without_a_journal_is_named(tmp_path):
    """A missing folder and a folder without segments are not reported as damage."""
    with pytest.raises(JournalMissing, match="no journal here"):
        Reader(tmp_path / "nowhere")
    with pytest.raises(JournalMissing, match="empty"):
        Reader(tmp_path)


def test_what_a_newer_version_wrote_is_refused_by_name(tmp_path):
    """A segment packed by a newer version asks for that version; a name of unknown form is damage."""
    with begin(Journal.open(tmp_path, segment_bytes=65_536)) as journal:
        for n in range(20):
            commit(journal, [event(n)])
    Packer(Files(), tmp_path, pause_s=0).pack_all()
    (path,) = tmp_path.glob("*.wal.zst")
    image = bytearray(path.read_bytes())
    image[-16:-12] = (2).to_bytes(4, "little")  # the version of the packing, its table's checksum made good
    table = image.rindex(b"\x5e\x2a\x4d\x18")
    image[-4:] = crc32c(bytes(image[table:-4])).to_bytes(4, "little")
    path.write_bytes(image)
    with pytest.raises(JournalTooNew, match="packed by a newer version"):
        Reader(tmp_path)
    path.with_name("00000002-x.wal").touch()
    with pytest.raises(JournalDamaged, match="file's name"):
        Journal.open(tmp_path)


def test_the_last_entries_of_a_large_segment_cost_a_few_reads(quick_path):
    """`tail`, `last_seq` and following do not read the zeros up to the segment's end."""

    class Counting(Files):
        read = 0

        def pread(self, descriptor, length, offset):
            data = super().pread(descriptor, length, offset)
            self.read += len(data)
            return data

    with begin(Journal.open(quick_path, segment_bytes=40_000_000)) as journal:
        for n in range(30):
            commit(journal, [event(n)])
        counting = Counting()
        with Reader(quick_path, files=counting) as reader:
            assert [entry.seq for entry in reader.tail(20)] == list(range(11, 31))
            assert reader.last_seq == 30
            assert list(reader) == []
    assert counting.read < 10_000_000


def test_an_event_nested_deeper_than_any_reader_goes_is_damage(tmp_path):
    """Its checksums are right. Every function says the same, and the journal is not opened for writing. How deep a
    reader goes is the interpreter's: from Python 3.14 on as far as its stack reaches.
    """
    with begin(Journal.open(tmp_path)) as journal:
        commit(journal, [event(0)])
        commit(journal, [b"\x91" * 1_000_000 + b"\x90"])
        commit(journal, [event(2)])
    got, error = read_all(tmp_path, Files())
    assert got == numbered([event(0)])
    assert isinstance(error, JournalDamaged)
    assert error.damage is Damage.BODY
    assert verify(tmp_path).verdict is Verdict.DAMAGED
    with pytest.raises(JournalDamaged):
        Journal.open(tmp_path, tabulation=Tabulation((("n", "d"),), lambda _: None)).close()
