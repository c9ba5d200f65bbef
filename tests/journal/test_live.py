"""Fault class 16: reading and verifying a live journal, a stopped writer, clocks set back, another boot."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

from journal import Files, Journal, Reader, Verdict, verify
from tests.journal.make import BOOT, CONTEXT, RUN, SECOND_NS, begin, commit, event, numbered, read_all

SEGMENT = 65_536
BATCHES = 600


@contextmanager
def writer(folder: Path, work: Callable[[Journal], None]):
    """Start another process that opens the journal, reports that, works, closes and exits with 0."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with begin(Journal.open(folder, segment_bytes=SEGMENT)) as journal:
                os.write(writing, b"x")
                work(journal)
            code = 0
        finally:
            os._exit(code)
    os.read(reading, 1)
    os.close(reading)
    os.close(writing)
    try:
        yield child
    finally:
        _, status = os.waitpid(child, 0)
    assert status == 0


def running(child: int) -> bool:
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None


def write_many(journal: Journal) -> None:
    journal.start_preparing()
    for n in range(BATCHES):
        commit(journal, [event(n, size=n * 37 % 9000)], step=n)


def test_a_follower_sees_every_event_once_and_in_order(tmp_path):
    """A reader that follows a writer over dozens of rotations misses no event and repeats none."""
    with writer(tmp_path, write_many) as child, Reader(tmp_path) as reader:
        seen = [(e.seq, bytes(e.event)) for e in reader.follow(poll_s=0.001, until=lambda: not running(child))]
        segments = len(list(tmp_path.glob("*.wal*")))

    assert seen == numbered(event(n, size=n * 37 % 9000) for n in range(BATCHES))
    assert segments > 20


def test_a_follower_misses_nothing_of_what_was_written_before_it_was_told_to_end(tmp_path):
    """The last event and the order to end come while the follower is at the end: it still yields the event."""
    with begin(Journal.open(tmp_path, segment_bytes=SEGMENT)) as journal, Reader(tmp_path) as reader:
        commit(journal, [event(1, size=100)], step=1)

        def last_words() -> bool:
            commit(journal, [event(2, size=100)], step=2)
            return True

        assert [entry.seq for entry in reader.follow(until=last_words)] == [1, 2]


def test_verify_never_calls_a_live_journal_damaged(tmp_path):
    """Repeated verifying during writes reports clean, or a write in flight."""
    verdicts, counts = [], []
    with writer(tmp_path, write_many) as child:
        while running(child):
            report = verify(tmp_path)
            verdicts.append(report.verdict)
            counts.append(report.events)
            with Reader(tmp_path) as reader:
                assert reader.last_seq >= report.last_seq

    assert set(verdicts) <= {Verdict.CLEAN, Verdict.TORN_TAIL}
    assert counts == sorted(counts)
    assert verify(tmp_path).events == BATCHES


def test_the_last_entries_of_a_live_journal_are_right(tmp_path):
    """`tail` and `seek` during writes return consecutive numbers with the right content."""
    with writer(tmp_path, write_many) as child:
        while running(child):
            with Reader(tmp_path) as reader:
                last = reader.tail(20)
                middle = list(reader.seek(seq=max(1, len(last) // 2)))[:5]
            for found in (last, middle):
                assert [e.seq for e in found] == list(range(found[0].seq, found[0].seq + len(found))) if found else True
                assert all(bytes(e.event) == event(e.seq - 1, size=(e.seq - 1) * 37 % 9000) for e in found)


def test_a_stopped_writer_holds_nobody_up(tmp_path):
    """With the writer in SIGSTOP readers read, verify answers, a second writer is refused; then it continues."""

    def slowly(journal: Journal) -> None:
        for n in range(50):
            commit(journal, [event(n)], step=n)
            time.sleep(0.002)

    with writer(tmp_path, slowly) as child:
        time.sleep(0.02)
        os.kill(child, signal.SIGSTOP)
        got, error = read_all(tmp_path, Files())
        assert error is None
        assert got == numbered(event(n) for n in range(len(got)))
        assert verify(tmp_path).verdict in (Verdict.CLEAN, Verdict.TORN_TAIL)
        os.kill(child, signal.SIGCONT)
    assert len(read_all(tmp_path, Files())[0]) == 50


def test_a_clock_that_goes_back_is_stored_as_read_and_searched_by_its_maximum(tmp_path):
    """One hour back: the labels stay as given, and a time is found where it was first reached."""
    hour = 3600 * SECOND_NS
    walls = [10 * hour, 11 * hour, 10 * hour + 1, 10 * hour + 2, 12 * hour]
    with begin(Journal.open(tmp_path, segment_bytes=SEGMENT)) as journal:
        for n, wall_ns in enumerate(walls):
            commit(journal, [event(n)], wall_ns=wall_ns)

    with Reader(tmp_path) as reader:
        assert [entry.wall_ns for entry in reader] == walls
        assert next(iter(reader.seek(time_ns=10 * hour + 2))).seq == 2
        assert next(iter(reader.seek(time_ns=11 * hour + 1))).seq == 5
        assert list(reader.seek(time_ns=13 * hour)) == []
    assert verify(tmp_path).verdict is Verdict.CLEAN


def test_another_boot_goes_on_with_the_same_journal(tmp_path):
    """A journal can be continued after a reboot: the boot id is only a label."""
    begin(Journal.open(tmp_path, segment_bytes=SEGMENT)).close()
    with Journal.open(tmp_path, segment_bytes=SEGMENT) as journal:
        journal.begin(run_id=RUN, context_hash=CONTEXT, capture=bytes, wall_ns=1, boot_id=BOOT[::-1])
        for n in range(30):
            commit(journal, [event(n)])

    boots = {path.read_bytes()[64:80] for path in tmp_path.glob("*.wal")}
    assert boots == {BOOT, BOOT[::-1]}
    assert verify(tmp_path).verdict is Verdict.CLEAN


def test_a_write_in_flight_is_no_damage_to_a_reader(tmp_path):
    """Half a frame at the end ends the iteration without an error; when the rest arrives the reader continues."""
    with begin(Journal.open(tmp_path, segment_bytes=SEGMENT)) as journal:
        commit(journal, [event(0)])
        place = journal.statistics().segment_offset
        commit(journal, [event(1, size=9000)])
        journal.abandon_in_child()
    (path,) = tmp_path.glob("*.wal")
    whole = path.read_bytes()
    path.write_bytes(whole[: place + 4096] + bytes(len(whole) - place - 4096))

    with Reader(tmp_path) as reader:
        assert [entry.seq for entry in reader] == [1]
        path.write_bytes(whole)
        assert [entry.seq for entry in reader] == [2]
        assert list(reader) == []
