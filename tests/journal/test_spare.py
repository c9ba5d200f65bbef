"""Spare segments: made ahead in the background, of zeros, without delaying the journal."""

from __future__ import annotations

import errno
import os
import threading
import time
from types import SimpleNamespace

import pytest

from journal import Files, Journal, Verdict, verify
from journal.spare import SpareMaker
from tests.journal.make import FaultyFiles, begin, commit, event
from tests.waiting import PATIENCE_S, within

SEGMENT = 8 * 4096


def test_no_spare_is_made_before_it_is_asked_for(tmp_path):
    """Until `start_preparing`, the folder contains only the segment and the lock."""
    with begin(Journal.open(tmp_path, segment_bytes=SEGMENT)):
        time.sleep(0.05)
        assert sorted(path.suffix for path in tmp_path.iterdir()) == ["", ".wal"]


def test_the_background_thread_keeps_one_spare_ready(tmp_path):
    """After each rotation a new one appears; the thread ends with the journal and leaves no spare."""
    with begin(Journal.open(tmp_path, segment_bytes=SEGMENT)) as journal:
        journal.start_preparing()
        for segment_no in (1, 2, 3):
            assert within(PATIENCE_S, lambda: journal.statistics().spare_ready)
            while journal.statistics().segment_no == segment_no:
                commit(journal, [event(0)])
        assert len(list(tmp_path.glob("spare-*.tmp"))) <= 1
    assert list(tmp_path.glob("*.tmp")) == []
    assert not [thread for thread in threading.enumerate() if thread.name == "journal-spare"]
    assert verify(tmp_path).verdict is Verdict.CLEAN


def test_background_threads_are_ordinary_whoever_started_them(tmp_path):
    """A thread that fills a disk in a real-time class would delay the trainer."""
    found = []

    def start() -> None:
        try:
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        except PermissionError:
            return
        with begin(Journal.open(tmp_path, segment_bytes=SEGMENT)) as journal:
            journal.start_preparing()
            assert within(PATIENCE_S, lambda: journal.statistics().spare_ready)
            threads = [one for one in threading.enumerate() if one.name in ("journal-spare", "journal-pack")]
            found.extend((one.name, os.sched_getscheduler(one.native_id)) for one in threads)

    starter = threading.Thread(target=start)
    starter.start()
    starter.join()
    if not found:
        pytest.skip("this user may not ask for SCHED_FIFO")
    assert sorted(found) == [("journal-pack", os.SCHED_OTHER), ("journal-spare", os.SCHED_OTHER)]


def test_zeros_are_written_with_pauses_in_the_background_and_without_where_somebody_waits(tmp_path, monkeypatch):
    """In the background 100 MB at once would delay the journal's writes.

    A writer that needs the file now does not pause.
    """
    pauses = []
    # Not the function of the module `time`: another thread of this process may sleep, too.
    monkeypatch.setattr("journal.spare.time", SimpleNamespace(sleep=pauses.append))
    SpareMaker(Files(), tmp_path, 3 << 20).take(3 << 20, 3 << 20)
    assert pauses == []

    maker = SpareMaker(Files(), tmp_path, 3 << 20)
    maker.start()
    ready = wait_until_ready(maker)
    maker.stop()
    assert ready
    # A piece is a mebibyte.
    assert pauses == [0.02] * 3


def wait_until_ready(maker: SpareMaker) -> bool:
    """Wait without `time.sleep`, whose calls are counted."""
    deadline = time.monotonic() + PATIENCE_S
    while not maker.ready and time.monotonic() < deadline:
        threading.Event().wait(0.005)
    return maker.ready


def test_a_spare_is_all_zeros_and_has_its_full_length(tmp_path):
    """It is written and not merely allocated: as many blocks as bytes."""
    maker = SpareMaker(Files(), tmp_path, 3_000_000)
    spare = maker.take(3_000_000, 3_000_000)

    assert spare.read_bytes() == bytes(3_000_000)
    assert spare.stat().st_blocks * 512 >= 3_000_000


def test_a_spare_that_is_too_small_is_kept_for_the_next_time(tmp_path):
    """A longer segment is made at once."""
    maker = SpareMaker(Files(), tmp_path, 10_000)
    assert maker.prepare()

    assert maker.take(20_000, 10_000).stat().st_size == 20_000
    assert maker.ready
    assert maker.take(10_000, 10_000).stat().st_size == 10_000
    assert not maker.ready


def test_a_reserved_spare_of_another_length_is_not_taken(tmp_path):
    """Each file has exactly the length asked for, and none is left over."""
    maker = SpareMaker(Files(), tmp_path, 10_000)
    maker.reserve(30_000)
    assert maker.take(20_000, 10_000).stat().st_size == 20_000
    assert len(list(tmp_path.iterdir())) == 1


def test_a_spare_that_was_begun_for_a_shorter_segment_is_not_kept(tmp_path):
    """The writer takes a longer one while a short one is filled; the next one made ahead has the new length."""

    class Meanwhile(Files):
        """While the first spare is created, the writer begins the next segment."""

        taken = False

        def create(self, path):
            if not self.taken:
                self.taken = True
                maker.take(20_000, 40_000)
            return super().create(path)

    maker = SpareMaker(Meanwhile(), tmp_path, 10_000)
    maker.prepare()
    assert not maker.ready
    assert maker.prepare()
    assert maker.take(40_000, 40_000).stat().st_size == 40_000
    assert sorted(path.stat().st_size for path in tmp_path.iterdir()) == [20_000, 40_000]


def test_segments_grow_and_each_next_one_is_made_ahead(tmp_path):
    """Each is four times as long as the one before, up to the configured length; no commit makes its file."""
    lengths, made = [], []

    class Watching(Files):
        """Notes the names of threads that make files."""

        def create(self, path):
            made.append(threading.current_thread().name)
            return super().create(path)

    journal = Journal.open(tmp_path, segment_bytes=20 * SEGMENT, first_bytes=SEGMENT, files=Watching())
    with begin(journal):
        made.clear()
        journal.start_preparing()
        for segment_no in range(1, 5):
            assert within(PATIENCE_S, lambda: journal.statistics().spare_ready)
            while journal.statistics().segment_no == segment_no:
                commit(journal, [event(0)])
            lengths.append(max(tmp_path.glob("*.wal")).stat().st_size)
        assert within(PATIENCE_S, lambda: journal.statistics().packed == 4)
    assert lengths == [4 * SEGMENT, 16 * SEGMENT, 20 * SEGMENT, 20 * SEGMENT]
    assert set(made) == {"journal-spare", "journal-pack"}
    assert verify(tmp_path).verdict is Verdict.CLEAN


def test_a_full_disk_is_noted_and_its_space_given_back(tmp_path):
    """The background thread reports the error and leaves no partial spare; commits continue."""
    files = FaultyFiles("create", 2, 2, errno.ENOSPC)
    with begin(Journal.open(tmp_path, segment_bytes=SEGMENT, files=files)) as journal:
        assert journal.prepare_spare() is False
        assert "No space left" in str(journal.statistics().spare_error)
        assert list(tmp_path.glob("*.tmp")) == []
        assert commit(journal, [event(0)]) == 1
        assert journal.prepare_spare() is True
        assert journal.statistics().spare_error is None


def test_what_a_crash_left_is_removed_at_the_next_start(tmp_path):
    """A partial spare may not be zero: `begin` removes it, `open` does not touch it."""
    left = tmp_path / "spare-1.tmp"
    left.write_bytes(b"half")
    journal = Journal.open(tmp_path, segment_bytes=SEGMENT)
    assert left.read_bytes() == b"half"
    begin(journal)
    assert not left.exists()
    journal.close()


def test_a_spare_that_cannot_be_made_at_all_is_an_error(tmp_path):
    """`take` raises the file system's error."""
    maker = SpareMaker(FaultyFiles("create", 1, 1, errno.EROFS), tmp_path, 10_000)
    with pytest.raises(OSError, match="Read-only"):
        maker.take(3_000_000, 3_000_000)
