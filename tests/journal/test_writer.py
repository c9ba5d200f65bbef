"""The writer's interface: batches, rotation, captures, marks, refusals, one writer at a time."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from journal import (
    BatchRefused,
    Files,
    FrameKind,
    Journal,
    JournalClosed,
    JournalEntry,
    JournalFailed,
    JournalLocked,
    Mark,
    Reader,
    RecoveryKind,
    Verdict,
    verify,
)
from tests.descriptors import opened
from tests.journal.make import BOOT, CONTEXT, RUN, MemoryFiles, begin, commit, entries, event, numbered, read_all

SEGMENT = 65_536


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def fill(journal: Journal) -> None:
    """Commit until the first segment is full and the second one begins."""
    while journal.statistics().segment_no == 1:
        commit(journal, [event(0)])


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run" / "journal"


def test_a_new_journal_is_new_until_it_is_begun(folder):
    """Opening creates the folder and the lock file, but no segment."""
    with Journal.open(folder, segment_bytes=SEGMENT) as journal:
        assert (journal.run_id, journal.last_seq) == (None, 0)
        assert list(journal.records()) == []
        assert names(folder) == ["lock"]
        begin(journal)
        assert journal.run_id == RUN
        assert sorted(names(folder)) == ["00000001-0000000000000001.wal", "lock"]


def test_sequence_numbers_start_at_one_and_have_no_gaps(folder):
    """A commit returns the number of its first event; batches of any size follow each other."""
    with begin(Journal.open(folder, segment_bytes=SEGMENT)) as journal:
        firsts = [commit(journal, [event(n)] * size) for n, size in enumerate((1, 15, 16, 4096, 1))]

        assert firsts == [1, 2, 17, 33, 4129]
        assert journal.last_seq == 4129


def test_what_was_committed_is_what_is_read_back_across_rotations(folder):
    """Bytes, order and labels survive many segments, by the writer's own records and by a reader."""
    written = [event(n, size=n % 700) for n in range(300)]
    with begin(Journal.open(folder, segment_bytes=SEGMENT)) as journal:
        for n, one in enumerate(written):
            commit(journal, [one], step=n)
        assert journal.statistics().segment_no > 10

    with Journal.open(folder, segment_bytes=SEGMENT) as journal:
        assert entries(journal.records()) == numbered(written)
        assert entries(journal.records(after_seq=123)) == numbered(written)[123:]
    with Reader(folder) as reader:
        labels = [(entry.epoch, entry.step, entry.wall_ns) for entry in reader]
    assert labels[42] == (4, 42, 42_000_000_000)
    assert read_all(folder, Files())[0] == numbered(written)


def test_a_batch_larger_than_a_segment_gets_a_segment_of_its_own_size(folder):
    """If a capture and a batch do not fit, the next file gets longer."""
    large = event(1, size=300_000)
    with begin(Journal.open(folder, segment_bytes=SEGMENT), state=lambda: "s" * 200_000) as journal:
        commit(journal, [event(0)])
        commit(journal, [large])
        commit(journal, [event(2)])

    assert read_all(folder, Files())[0] == numbered([event(0), large, event(2)])
    assert verify(folder).verdict is Verdict.CLEAN


def test_every_capture_and_what_follows_it_give_the_whole(folder):
    """Class 15: each capture is the state of the events before it, and the later events complete it."""
    state: list[int] = []
    with begin(Journal.open(folder, segment_bytes=SEGMENT), state=lambda: list(state)) as journal:
        for n in range(200):
            # A capture inside this commit is the state before its batch.
            commit(journal, [event(n), event(-n)])
            state += [n, -n]

    with Journal.open(folder, segment_bytes=SEGMENT) as journal:
        captures = list(journal.captures())
        assert [capture.seq for capture in captures] == sorted({c.seq for c in captures}, reverse=True)
        assert captures[-1].seq == 0
        assert len(captures) > 10
        for capture in captures:
            folded = msgspec.msgpack.decode(capture.body)
            suffix = [record for record in journal.records(capture.seq) if isinstance(record, JournalEntry)]
            assert len(folded) == capture.seq
            assert folded + [msgspec.msgpack.decode(entry.event)["n"] for entry in suffix] == state


def test_marks_stand_where_they_were_written(folder):
    """A state hash comes back after its event, also if replay starts exactly there."""
    with begin(Journal.open(folder, segment_bytes=SEGMENT)) as journal:
        for n in range(30):
            commit(journal, [event(n)])
            if n % 10 == 9:
                journal.mark(FrameKind.STATE_HASH, msgspec.msgpack.encode(n), wall_ns=n, mono_ns=n)

    with Journal.open(folder, segment_bytes=SEGMENT) as journal:
        kinds = [r for r in journal.records() if isinstance(r, Mark) and r.kind is FrameKind.STATE_HASH]
        assert [(mark.seq, msgspec.msgpack.decode(mark.body)) for mark in kinds] == [(10, 9), (20, 19), (30, 29)]
        first = next(iter(journal.records(after_seq=20)))
        assert isinstance(first, Mark)
        assert first.seq == 20
        order = [type(record).__name__ for record in journal.records(after_seq=9)][:3]
        assert order == ["JournalEntry", "Mark", "JournalEntry"]


def test_a_clean_stop_is_told_from_a_crash(folder):
    """A closed journal ends in a watermark; after a crash it does not."""
    begin(Journal.open(folder, segment_bytes=SEGMENT)).close()
    journal = Journal.open(folder, segment_bytes=SEGMENT)
    clean = journal.begin(run_id=RUN, context_hash=CONTEXT, capture=bytes, wall_ns=1, boot_id=BOOT)
    commit(journal, [event(0)])
    journal.abandon_in_child()
    with Journal.open(folder, segment_bytes=SEGMENT) as journal:
        unclean = journal.begin(run_id=RUN, context_hash=CONTEXT, capture=bytes, wall_ns=1, boot_id=BOOT)

    assert (clean.kind, unclean.kind) == (RecoveryKind.CLEAN, RecoveryKind.UNCLEAN)
    assert (unclean.bytes_cut, unclean.quarantine) == (0, None)


def test_a_second_writer_is_refused_and_takes_nothing(folder):
    """The lock is held from open to close; the refusal does not affect the first writer."""
    with begin(Journal.open(folder, segment_bytes=SEGMENT)) as journal:
        with pytest.raises(JournalLocked, match="another process writes this journal"):
            Journal.open(folder, segment_bytes=SEGMENT)
        commit(journal, [event(0)])
    Journal.open(folder, segment_bytes=SEGMENT).close()


def test_a_forked_child_lets_go_of_its_parents_journal(folder):
    """In the child every call is refused. The parent continues, and its close releases the lock."""
    journal = begin(Journal.open(folder, segment_bytes=SEGMENT))
    commit(journal, [event(0)])
    ready, done = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        try:
            commit(journal, [event(666)])
            os.write(ready[1], b"written")
        except JournalClosed:
            os.write(ready[1], b"refused")
        os.read(done[0], 1)  # alive, with everything it inherited, while the parent closes and opens again
        os._exit(0)

    assert os.read(ready[0], 16) == b"refused"
    commit(journal, [event(1)])
    journal.close()
    with Journal.open(folder, segment_bytes=SEGMENT) as again:
        assert entries(again.records()) == numbered([event(0), event(1)])
    os.write(done[1], b"x")
    os.waitpid(child, 0)
    for end in (*ready, *done):
        os.close(end)


def test_no_descriptor_is_left_open(folder):
    """Opening, reading, verifying and closing many times leaves no descriptor open."""
    with begin(Journal.open(folder, segment_bytes=SEGMENT)) as journal:
        for n in range(100):
            commit(journal, [event(n)])
    before = opened()

    for _ in range(10):
        with Journal.open(folder, segment_bytes=SEGMENT) as journal:
            list(journal.records())
            list(journal.captures())
            begin(journal).start_preparing()
            commit(journal, [event(1)])
        with Reader(folder) as reader:
            list(reader.seek(step=0))
            reader.tail(50)
            list(reader.captures())
        verify(folder)

    assert not opened() - before


def test_a_long_journal_needs_few_descriptors(folder):
    """Opening and reading hundreds of segments keeps only a few files open."""
    files = MemoryFiles()
    with begin(Journal.open(folder, segment_bytes=8 * 512, alignment=512, files=files)) as journal:
        for n in range(600):
            commit(journal, [event(n)])
    most = 0

    class Counting(MemoryFiles):
        def _opened(self, path):
            nonlocal most
            most = max(most, len(self.open) + 1)
            return super()._opened(path)

    counting = Counting(files.snapshot())
    with Journal.open(folder, files=counting) as journal:
        assert len(entries(journal.records())) == 600
    assert len(read_all(folder, counting)[0]) == 600
    assert len(counting.images) > 60
    assert most < 12


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda j: commit(j, []), "1 to 4096 events, not 0"),
        (lambda j: commit(j, [b"\x80"] * 4097), "1 to 4096 events, not 4097"),
        (lambda j: commit(j, [bytes(70_000_000)]), "at most 67108864 bytes"),
        (lambda j: commit(j, [event(0)], step=-1), "outside its field"),
        (lambda j: j.mark(FrameKind.SEAL, b"", wall_ns=0, mono_ns=0), "SEAL frames"),
    ],
)
def test_a_batch_out_of_bounds_is_refused_and_nothing_is_written(folder, act: Callable[[Journal], object], message):
    """The error names the bound, is also a ValueError, and the journal continues."""
    with begin(Journal.open(folder, segment_bytes=SEGMENT)) as journal:
        before = journal.statistics()
        with pytest.raises(BatchRefused, match=message) as refused:
            act(journal)
        assert isinstance(refused.value, ValueError)
        assert journal.statistics() == before
        assert commit(journal, [event(0)]) == 1


@pytest.mark.parametrize(
    "sizes", [{"segment_bytes": 1000}, {"alignment": 1000}, {"alignment": 256}, {"segment_bytes": 1 << 50}]
)
def test_sizes_out_of_bounds_are_refused_before_anything_is_made(folder, sizes):
    """A segment size or alignment outside the format is named, and no folder is created."""
    with pytest.raises(BatchRefused, match=next(iter(sizes))):
        Journal.open(folder, **sizes)
    assert not folder.exists()


def test_another_run_cannot_go_on_with_this_journal(folder):
    """`begin` refuses a run id other than the journal's own."""
    begin(Journal.open(folder, segment_bytes=SEGMENT)).close()
    with Journal.open(folder) as journal, pytest.raises(BatchRefused, match="another run"):
        journal.begin(run_id=bytes(16), context_hash=CONTEXT, capture=bytes, wall_ns=1, boot_id=BOOT)


def test_calls_out_of_order_say_what_to_do(folder):
    """Committing before `begin`, folding after it, and any call after `close` are refused with a message."""
    journal = Journal.open(folder, segment_bytes=SEGMENT)
    with pytest.raises(JournalClosed, match="not called"):
        commit(journal, [event(0)])
    begin(journal)
    with pytest.raises(JournalClosed, match="already called"):
        list(journal.records())
    journal.close()
    journal.close()
    with pytest.raises(JournalClosed, match="closed"):
        commit(journal, [event(0)])


def test_a_write_that_is_interrupted_freezes_the_journal(folder):
    """After an exception between a write and its count the disk is unknown: no later commit may overwrite it."""
    stop = {"armed": False}

    def reached(point: str) -> None:
        if point == "committed" and stop["armed"]:
            raise KeyboardInterrupt

    with begin(Journal.open(folder, segment_bytes=SEGMENT, reached=reached)) as journal:
        commit(journal, [event(0)])
        stop["armed"] = True
        with pytest.raises(KeyboardInterrupt):
            commit(journal, [event(1)])
        stop["armed"] = False
        with pytest.raises(JournalFailed, match="interrupted"):
            commit(journal, [event(2)])

    got = read_all(folder, Files())[0]
    assert got == numbered([event(0), event(1)])  # never acknowledged, and whole: it counts


def test_a_state_that_cannot_be_captured_freezes_the_journal(folder):
    """The capture's exception is raised once; afterwards the journal gives the reason for the freeze."""
    calls = iter(["the first segment's"])

    def state() -> object:
        return next(calls)  # raises StopIteration when the second segment begins

    with begin(Journal.open(folder, segment_bytes=SEGMENT), state=state) as journal:
        with pytest.raises(StopIteration):
            fill(journal)
        with pytest.raises(JournalFailed, match="cannot be captured"):
            commit(journal, [event(0)])
        assert "cannot be captured" in str(journal.statistics().failed)


def test_a_state_too_large_for_a_frame_freezes_the_journal(folder, monkeypatch):
    """Readers would refuse such a frame; durable events stay readable. The bound is made small."""
    monkeypatch.setattr("journal.appending.BODY_BYTES_MAX", 10_000)
    states = iter(["the first segment's", "x" * 10_001])
    with begin(Journal.open(folder, segment_bytes=SEGMENT), state=lambda: next(states)) as journal:
        with pytest.raises(JournalFailed, match="too large"):
            fill(journal)
        count = journal.last_seq

    assert len(read_all(folder, Files())[0]) == count > 0
    assert verify(folder).verdict is Verdict.CLEAN


def test_the_points_of_a_rotation_are_reached_in_order(folder):
    """`reached` is called for every write and between a new segment's name and its use."""
    points: list[str] = []
    with begin(Journal.open(folder, segment_bytes=8 * 4096, reached=points.append)) as journal:
        points.clear()
        fill(journal)

    # The seal, the new segment, the batch that did not fit before; then the watermark of the close.
    assert points[-8:] == ["commit", "committed", "rotation_head", "rotation", *["commit", "committed"] * 2]


def test_one_spare_is_kept_ready_and_used(folder):
    """A spare becomes the next segment; closing removes the one that is left."""
    with begin(Journal.open(folder, segment_bytes=8 * 4096)) as journal:
        assert journal.statistics().spare_ready is False
        assert journal.prepare_spare() is True
        assert journal.statistics().spare_ready is True
        fill(journal)
        assert journal.statistics().spare_ready is False
        assert journal.prepare_spare() is True
    assert [name for name in names(folder) if name.endswith(".tmp")] == []
