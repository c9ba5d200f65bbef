"""Captures: the states from which a fold can start, found from the end of the journal."""

from __future__ import annotations

import msgspec
import pytest

from journal import FrameKind, Journal, JournalEntry, Reader
from tests.journal.faults.lab import forged, pieces_of, put_pieces
from tests.journal.make import begin, commit, event

EVERY = 7
EVENTS = 100


@pytest.fixture
def folder(tmp_path):
    """A journal of several segments, with a capture after every seventh event besides those at the heads."""
    state: list[int] = []
    with begin(Journal.open(tmp_path, segment_bytes=40 * 4096), state=lambda: list(state)) as journal:
        for n in range(1, EVENTS + 1):
            commit(journal, [event(n)])
            state.append(n)
            if n % EVERY == 0:
                journal.mark(FrameKind.CAPTURE, msgspec.msgpack.encode(state), wall_ns=n, mono_ns=n)
    return tmp_path


def seqs(captures) -> list[int]:
    """Return the positions of the captures; each contains the state of its position."""
    found = list(captures)
    assert all(msgspec.msgpack.decode(one.body) == list(range(1, one.seq + 1)) for one in found)
    return [one.seq for one in found]


def test_writer_and_reader_find_all_of_them_newest_first(folder):
    """Captures at the heads and between frames are found; if a seventh event ends a segment, there are two."""
    with Reader(folder) as reader:
        found = seqs(reader.captures())
        assert reader.segments > 2
    with Journal.open(folder, segment_bytes=40 * 4096) as journal:
        assert seqs(journal.captures()) == found

    assert found == sorted(found, reverse=True)
    assert set(found) > set(range(0, EVENTS, EVERY))


@pytest.mark.parametrize("seq", [0, 1, 6, 7, 8, 34, 35, 36, 63, 69, 70, 77, 99, 100, 1000])
def test_of_a_place_in_the_past_are_found_those_at_and_before_it(folder, seq):
    """Only the captures up to the position are returned, and the events after them up to it remain to be folded."""
    with Reader(folder) as reader:
        every = seqs(reader.captures())
        found = seqs(reader.captures(seq))
        left = [record for record in reader.records(found[0]) if isinstance(record, JournalEntry) and record.seq <= seq]

    assert found == [one for one in every if one <= seq]
    assert len(left) < EVERY


def test_replay_from_a_capture_between_is_the_rest(folder):
    """The writer's records start at the position and include marks of that state."""
    with Journal.open(folder, segment_bytes=40 * 4096) as journal:
        newest = next(journal.captures())
        records = list(journal.records(newest.seq))

    assert [record.seq for record in records if isinstance(record, JournalEntry)] == list(
        range(newest.seq + 1, EVENTS + 1)
    )


def test_one_that_was_changed_and_made_good_is_passed_by(folder):
    """Its checksums are right, but the next frame has another hash of it, so it is not used."""
    last = max(folder.glob("*.wal"))
    with Reader(folder) as reader:
        newest, older, *_ = seqs(reader.captures())
    image = last.read_bytes()
    victim = next(one for one in reversed(pieces_of(image)) if one.header.kind == FrameKind.CAPTURE)
    assert victim.header.last_seq == newest
    body = victim.body[:-1] + b"\x00"
    last.write_bytes(put_pieces(image, [forged(victim, body)]))

    with Reader(folder) as reader:
        assert seqs(reader.captures())[0] == older


def test_one_that_is_damaged_is_passed_by(folder):
    """The fold starts at an older capture and then reports the damage."""
    last = max(folder.glob("*.wal"))
    with Reader(folder) as reader:
        newest, older, *_ = seqs(reader.captures())
    data = bytearray(last.read_bytes())
    # A capture is the only frame whose body begins with an array of so many numbers.
    place = data.rindex(msgspec.msgpack.encode(list(range(1, newest + 1))))
    data[place + 5] ^= 1
    last.write_bytes(data)

    with Reader(folder) as reader:
        assert seqs(reader.captures())[0] == older
