"""Group commit: order, waiting in threads and tasks, failures, cancellation, closing and forking."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import threading

import msgspec
import pytest

from journal import BatchRefused, Files, FrameKind, Journal, JournalClosed, JournalFailed, Reader, Verdict, verify
from tests.journal.make import FaultyFiles, begin, commit, event, numbered, read_all

SEGMENT = 65_536


class Gate(Files):
    """Holds every write back until the test opens it, and reports that one has arrived."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.reached = threading.Event()
        self.opened.set()

    def pwrite(self, descriptor, data, offset):
        self.reached.set()
        assert self.opened.wait(30)
        return super().pwrite(descriptor, data, offset)

    def shut(self) -> None:
        self.reached.clear()
        self.opened.clear()


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def journal(quick_path, gate):
    with begin(Journal.open(quick_path, segment_bytes=SEGMENT, files=gate)) as opened:
        yield opened
        gate.opened.set()


def append(journal: Journal, n: int) -> None:
    journal.append(event(n), epoch=0, step=n)


def on_disk(journal: Journal) -> int:
    with Reader(journal.folder) as reader:
        return reader.last_seq


def test_what_a_thread_appends_is_there_in_order_when_it_waited(journal):
    """Ten thousand events over several segments: after `durable` another reader finds all of them in order."""
    for n in range(10_000):
        append(journal, n)
    journal.durable()

    assert read_all(journal.folder, Files())[0] == numbered(event(n) for n in range(10_000))
    assert verify(journal.folder).verdict in (Verdict.CLEAN, Verdict.TORN_TAIL)


def test_each_thread_keeps_its_order_and_waits_for_its_own(journal):
    """Eight threads: all events that a thread appended before it waited are on disk when it continues."""
    missing: list[int] = []

    def work(number: int) -> None:
        for n in range(50):
            mine = msgspec.msgpack.encode([number, n])
            journal.append(mine, epoch=0, step=0)
            journal.durable()
            with Reader(journal.folder) as reader:
                if mine not in [bytes(entry.event) for entry in reader.tail(400)]:
                    missing.append(n)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    with Reader(journal.folder) as reader:
        found = [tuple(msgspec.msgpack.decode(entry.event)) for entry in reader]
    assert missing == []
    assert len(found) == 400
    for number in range(8):
        assert [n for who, n in found if who == number] == list(range(50))


def test_nobody_is_told_before_the_write_has_returned(journal, gate):
    """While the write is held back the waiting thread waits; `durable` with an empty queue returns at once."""
    journal.durable()
    gate.shut()
    append(journal, 0)
    told = threading.Event()
    waiter = threading.Thread(target=lambda: (journal.durable(), told.set()))
    waiter.start()
    assert gate.reached.wait(30)
    assert not told.wait(0.05)

    gate.opened.set()
    waiter.join(30)
    assert told.is_set()
    assert on_disk(journal) == 1


def test_what_is_queued_during_a_write_goes_into_one_frame(journal, gate):
    """The first event is alone, the next hundred are together; the frame has its last event's labels."""
    gate.shut()
    append(journal, 0)
    assert gate.reached.wait(30)
    for n in range(1, 101):
        append(journal, n)
    gate.opened.set()
    journal.durable()

    with Reader(journal.folder) as reader:
        steps = [entry.step for entry in reader]
    assert steps == [0] + [100] * 100


async def test_tasks_wait_without_holding_up_their_loop(journal, gate):
    """256 tasks await one write that is held back while the loop runs; then all continue and all events exist."""
    await journal.durable_async()
    gate.shut()

    async def one(n: int) -> int:
        append(journal, n)
        await journal.durable_async()
        return on_disk(journal)

    tasks = [asyncio.create_task(one(n)) for n in range(256)]
    await asyncio.sleep(0.05)
    assert not any(task.done() for task in tasks)
    gate.opened.set()
    counts = await asyncio.gather(*tasks)

    assert all(count > n for n, count in enumerate(counts))
    await journal.durable_async()


async def test_a_cancelled_task_takes_nothing_back_and_disturbs_nobody(journal, gate):
    """One of two waiting tasks is cancelled: the other one continues, and both events are written."""
    gate.shut()
    append(journal, 0)
    append(journal, 1)

    async def wait() -> None:
        await journal.durable_async()

    cancelled, other = (asyncio.create_task(wait()) for _ in range(2))
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.sleep(0)
    gate.opened.set()
    await other

    assert cancelled.cancelled()
    assert on_disk(journal) == 2


async def test_a_failure_reaches_everyone_who_waits_and_who_comes_later(quick_path):
    """Two failures in a row freeze the journal. Threads, tasks and later callers each get their own JournalFailed."""
    files = FaultyFiles("pwrite", 1, 1_000, errno.EIO)
    files.first = 1_000_000
    journal = begin(Journal.open(quick_path, segment_bytes=SEGMENT, files=files))
    append(journal, 0)
    journal.durable()
    files.first, files.last = 0, 1_000_000
    append(journal, 1)

    async def in_a_task() -> None:
        await journal.durable_async()

    waiting = [asyncio.to_thread(journal.durable), in_a_task(), in_a_task()]
    errors = await asyncio.gather(*waiting, return_exceptions=True)

    assert [type(error) for error in errors] == [JournalFailed] * 3
    assert len({id(error) for error in errors}) == 3
    with pytest.raises(JournalFailed):
        append(journal, 2)
    with pytest.raises(JournalFailed):
        journal.durable()
    journal.close()
    assert read_all(quick_path, Files())[0][:1] == numbered([event(0)])


def test_a_state_that_cannot_be_captured_is_a_failure_to_those_who_wait(quick_path):
    """The capture runs on the journal's thread; if it raises, its callers get JournalFailed."""
    states = iter([None])
    journal = begin(Journal.open(quick_path, segment_bytes=SEGMENT), state=lambda: next(states))

    def fill() -> None:
        for n in range(1_000):
            append(journal, n)
            journal.durable()

    with pytest.raises(JournalFailed, match="cannot be captured"):
        fill()
    journal.close()


def test_closing_writes_what_is_queued_and_tells_those_who_wait(quick_path, gate):
    """`close` while a thread waits: its events are written, it returns, and the journal is closed in order."""
    journal = begin(Journal.open(quick_path, segment_bytes=SEGMENT, files=gate))
    gate.shut()
    for n in range(20):
        append(journal, n)
    told = threading.Event()
    waiter = threading.Thread(target=lambda: (journal.durable(), told.set()))
    waiter.start()
    assert gate.reached.wait(30)
    closer = threading.Thread(target=journal.close)
    closer.start()
    gate.opened.set()
    closer.join(30)
    waiter.join(30)

    assert not closer.is_alive()
    with pytest.raises(JournalClosed):
        append(journal, 20)
    with pytest.raises(JournalClosed):
        journal.durable()
    report = verify(quick_path)
    assert (report.verdict, report.events) == (Verdict.CLEAN, 20)


def test_a_full_queue_lets_callers_wait_and_loses_nothing(journal, gate):
    """If more events come than the queue holds while the disk waits, the caller waits, then all are written."""
    gate.shut()
    total = 17 * 4096 + 5_000
    done = threading.Event()

    def work() -> None:
        for _ in range(total):
            journal.append(b"\xc0", epoch=0, step=0)
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    assert gate.reached.wait(30)
    assert not done.wait(0.5)
    gate.opened.set()
    thread.join(60)
    journal.durable()
    assert on_disk(journal) == total


def test_a_frame_is_closed_before_it_is_too_long_for_one(journal, gate, monkeypatch):
    """Waiting events may have more bytes than one frame holds. The bounds are made small."""
    monkeypatch.setattr("journal.grouping._GROUP_BYTES_MAX", 5_000)
    monkeypatch.setattr("journal.appending.BODY_BYTES_MAX", 6_000)
    gate.shut()
    append(journal, 0)
    assert gate.reached.wait(30)
    for n in range(1, 31):
        journal.append(event(n, size=900), epoch=0, step=n)
    gate.opened.set()
    journal.durable()

    assert on_disk(journal) == 31


def full(folder) -> tuple[Journal, FaultyFiles, threading.Thread]:
    """A journal without space for its next segment, and a thread that appended more than fits."""
    files = FaultyFiles("create", 1 << 30, 1 << 30, errno.ENOSPC)
    journal = begin(Journal.open(folder, segment_bytes=SEGMENT, files=files))
    files.strike_in_spares()
    told = threading.Event()

    def fill() -> None:
        with contextlib.suppress(JournalFailed):
            for n in range(30):
                append(journal, n)
                journal.durable()
        told.set()

    thread = threading.Thread(target=fill)
    thread.start()
    assert not told.wait(0.5)
    return journal, files, thread


def test_a_full_disk_is_waited_for_and_nothing_is_lost(quick_path):
    """Waiting callers keep waiting. With space again everything is written, under the same numbers."""
    journal, files, thread = full(quick_path)
    assert journal.statistics().failed is None
    files.only_spares, files.first = False, 1 << 30
    thread.join()
    journal.close()

    assert read_all(quick_path, Files()) == (numbered(event(n) for n in range(30)), None)


def test_a_close_does_not_wait_for_space(quick_path):
    """A daemon must be able to end on a full disk. No event that was not durable was reported as durable."""
    journal, _, thread = full(quick_path)
    journal.close()
    thread.join()

    got = read_all(quick_path, Files())[0]
    assert got == numbered(event(n) for n in range(len(got)))
    assert len(got) < 30


def test_commit_and_append_exclude_each_other(journal):
    """Commits before the first append work. After it `commit` and `mark` are refused, and appending continues."""
    commit(journal, [event(0)])
    append(journal, 1)
    with pytest.raises(BatchRefused, match="append"):
        commit(journal, [event(2)])
    with pytest.raises(BatchRefused, match="append"):
        journal.mark(FrameKind.WATERMARK, b"\xc0", wall_ns=0, mono_ns=0)
    append(journal, 2)
    journal.durable()
    assert on_disk(journal) == 3


def test_an_event_out_of_bounds_is_refused_and_the_rest_goes_on(journal):
    """A label outside its field or a too large event is refused at the call, and is not queued."""
    with pytest.raises(BatchRefused, match="step -1"):
        journal.append(event(0), epoch=0, step=-1)
    with pytest.raises(BatchRefused, match="bounds"):
        journal.append(bytes(70_000_000), epoch=0, step=0)
    append(journal, 0)
    journal.durable()
    assert on_disk(journal) == 1


def test_a_forked_child_cannot_append_and_its_parent_goes_on(journal):
    """In the child every call is refused at once, even if a lock was held at the fork; the parent continues."""
    append(journal, 0)
    child = os.fork()
    if child == 0:
        refused = 0
        for act in (lambda: append(journal, 9), journal.durable, journal.close):
            try:
                act()
            except JournalClosed:
                refused += 1
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
    append(journal, 1)
    journal.durable()
    assert read_all(journal.folder, Files())[0] == numbered([event(0), event(1)])


def test_killed_writers_lose_no_event_that_was_called_durable(quick_path, seed):
    """Ten writers in turn die of SIGKILL while they append: every number reported as durable exists."""
    for _ in range(10):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            with Journal.open(quick_path, segment_bytes=SEGMENT) as journal:
                begin(journal)
                for n in range(journal.last_seq, 1_000_000):
                    append(journal, n)
                    if n % 7 == 0:
                        journal.durable()
                        os.write(writing, (n + 1).to_bytes(8, "big"))
            os._exit(1)
        os.close(writing)
        reported = b"".join(os.read(reading, 8) for _ in range(5 + seed % 20))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        while more := os.read(reading, 4096):
            reported += more
        os.close(reading)
        last = int.from_bytes(reported[-8:], "big")
        got, error = read_all(quick_path, Files())
        assert error is None
        assert len(got) >= last
        assert got == numbered(event(n) for n in range(len(got)))
