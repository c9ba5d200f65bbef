"""Failing calls: each file operation fails once, or from some call on, at call 1, 2, 3 and so on.

After each failure no acknowledged event is lost and no uncommitted event is returned. A failed descriptor is never
written again, which the fake checks. The files open again.
"""

from __future__ import annotations

import errno
import itertools
import os
from collections import Counter
from pathlib import Path

import pytest

from journal import (
    Files,
    FrameKind,
    Journal,
    JournalDamaged,
    JournalError,
    JournalFailed,
    JournalFull,
    Mark,
    Reader,
    Verdict,
    verify,
)
from tests.journal.make import FaultyFiles, begin, commit, entries, event, numbered, read_all

SEGMENT = 8 * 4096
BATCHES = 9  # two rotations

FOREVER = 1 << 30


def run(folder: Path, files: FaultyFiles) -> tuple[list[bytes], list[bytes], JournalError | OSError | None]:
    """Commit batches until done or failed. Return the acknowledged batches, the attempted ones, and the failure."""
    acked: list[bytes] = []
    tried: list[bytes] = []
    journal = None
    try:
        journal = Journal.open(folder, segment_bytes=SEGMENT, files=files)
        begin(journal, state=lambda: len(acked))
        for n in range(BATCHES):
            tried.append(event(n))
            commit(journal, [event(n)])
            acked.append(event(n))
    except (JournalFailed, JournalFull, OSError) as failure:
        return acked, tried, failure
    finally:
        if journal is not None:
            journal.close()
    return acked, tried, None


def check_reopened(folder: Path, acked: list[bytes], tried: list[bytes]) -> None:
    """Open without faults: every acknowledged event is there, and at most the one batch of unknown outcome more."""
    with Journal.open(folder, segment_bytes=SEGMENT) as journal:
        got = entries(journal.records())
        assert got in (numbered(acked), numbered(tried))
        begin(journal)
        commit(journal, [event(1000)])
    events = [one for _, one in got]
    assert read_all(folder, Files())[0] == numbered([*events, event(1000)])
    assert verify(folder).verdict is Verdict.CLEAN


@pytest.mark.parametrize(
    ("fault", "lasting"),
    [
        (errno.EIO, "once"),
        (errno.ENOSPC, "once"),
        ("short", "once"),
        (errno.EIO, "twice"),
        ("short", "twice"),
        (errno.EROFS, "for good"),
        (errno.ENOSPC, "for good"),
    ],
)
def test_a_write_that_fails_loses_nothing(quick_path, fault, lasting):
    """pwrite fails at each call. If once, the batch goes to the next segment; if permanently, the journal freezes."""
    outcomes: Counter[str] = Counter()
    for first in itertools.count(1):
        last = {"once": first, "twice": first + 1, "for good": FOREVER}[lasting]
        files = FaultyFiles("pwrite", first, last, fault)
        folder = quick_path / str(first)

        acked, tried, failure = run(folder, files)
        check_reopened(folder, acked, tried)

        outcomes["failed" if failure else "went on"] += 1
        # A second failure in a row is the last: whatever is wrong, trying on does not mend it.
        assert files.count <= first + 2 or lasting != "for good"
        if files.count < first:
            break

    print(f"pwrite, {fault}, {lasting}: {outcomes}")
    assert outcomes.total() > BATCHES
    if lasting == "once" and fault in (errno.EIO, "short"):
        assert outcomes["went on"] >= BATCHES
    if lasting == "for good":
        assert outcomes["went on"] <= 2  # beyond the last call, and in the watermark of the close


@pytest.mark.parametrize("call", ["fsync", "fsync_folder", "rename", "create", "open_write"])
@pytest.mark.parametrize("fault", [errno.EIO, errno.ENOSPC])
def test_any_other_call_that_fails_loses_nothing(quick_path, call, fault):
    """Every other call that changes a file fails at each of its calls in turn."""
    outcomes: Counter[str] = Counter()
    for first in itertools.count(1):
        files = FaultyFiles(call, first, first, fault)
        folder = quick_path / str(first)

        acked, tried, failure = run(folder, files)
        check_reopened(folder, acked, tried)

        outcomes["failed" if failure else "went on"] += 1
        if files.count < first:
            break

    print(f"{call}, {fault}: {outcomes}")
    assert outcomes.total() > 2


def test_a_failed_write_goes_to_the_next_segment_after_a_poison_frame(tmp_path):
    """The batch keeps its numbers; the failed bytes are declared void, and readers and verify skip them."""
    files = FaultyFiles("pwrite", 0, 0, "short")
    with begin(Journal.open(tmp_path, segment_bytes=SEGMENT, files=files)) as journal:
        commit(journal, [event(0)])
        files.first = files.last = files.count + 1
        assert commit(journal, [event(1, size=5000), event(2)]) == 2
        assert journal.statistics().poisoned == 1
        assert journal.statistics().segment_no == 2
        assert commit(journal, [event(3)]) == 4

    expected = numbered([event(0), event(1, size=5000), event(2), event(3)])
    assert read_all(tmp_path, Files()) == (expected, None)
    assert verify(tmp_path).verdict is Verdict.CLEAN
    with Reader(tmp_path) as reader:
        kinds = [record.kind for record in reader.records() if isinstance(record, Mark)]
        assert FrameKind.POISON in kinds
        assert [entry.seq for entry in reader.tail(10)] == [1, 2, 3, 4]
    first, _ = sorted(tmp_path.glob("*.wal"))
    assert any(first.read_bytes()[3 * 4096 :])  # half of the failed frame is there, and void


def test_a_batch_whose_write_failed_but_arrived_counts_once(tmp_path):
    """The disk wrote the frame but reported an error: the void copy is skipped and the second one counts."""

    class ArrivesAndFails(Files):
        strike = False

        def pwrite(self, descriptor, data, offset):
            taken = super().pwrite(descriptor, data, offset)
            if self.strike:
                self.strike = False
                raise OSError(errno.EIO, "reported, yet done")
            return taken

    files = ArrivesAndFails()
    journal = begin(Journal.open(tmp_path, segment_bytes=SEGMENT, files=files))
    commit(journal, [event(0)])
    with Reader(tmp_path) as reader:
        assert len(list(reader)) == 1
        files.strike = True
        commit(journal, [event(1)])
        commit(journal, [event(2)])
        assert [entry.seq for entry in reader] == [2, 3]
    journal.close()

    assert read_all(tmp_path, Files())[0] == numbered([event(0), event(1), event(2)])
    assert verify(tmp_path).verdict is Verdict.CLEAN


def test_a_reader_that_saw_the_void_frame_first_returns_its_events_once(tmp_path):
    """A reader between the failed write and the POISON frame skips the repetition."""
    seen: list[int] = []

    class ReadInTheWindow(Files):
        strike = False

        def pwrite(self, descriptor, data, offset):
            taken = super().pwrite(descriptor, data, offset)
            if self.strike:
                self.strike = False
                seen.extend(entry.seq for entry in reader)
                raise OSError(errno.EIO, "reported, yet done")
            return taken

    files = ReadInTheWindow()
    journal = begin(Journal.open(tmp_path, segment_bytes=SEGMENT, files=files))
    with Reader(tmp_path) as reader:
        commit(journal, [event(0)])
        files.strike = True
        commit(journal, [event(1)])
        commit(journal, [event(2)])
        seen.extend(entry.seq for entry in reader)
    journal.close()

    assert seen == [1, 2, 3]


def test_an_interrupted_switch_never_goes_back_to_the_failed_segment(tmp_path):
    """A failed write's move to the next segment is interrupted: frozen, and close writes nothing there."""
    points = {"rotation": False}

    def reached(point: str) -> None:
        if point == "rotation" and points["rotation"]:
            raise KeyboardInterrupt

    files = FaultyFiles("pwrite", 0, 0, errno.EIO)
    journal = begin(Journal.open(tmp_path, segment_bytes=SEGMENT, files=files, reached=reached))
    commit(journal, [event(0)])
    files.first = files.last = files.count + 1
    points["rotation"] = True
    with pytest.raises(KeyboardInterrupt):
        commit(journal, [event(1)])
    with pytest.raises(JournalFailed, match="interrupted"):
        commit(journal, [event(2)])
    writes = files.count
    journal.close()

    assert files.count == writes
    check_reopened(tmp_path, [event(0)], [event(0), event(1)])


def test_failures_with_a_good_write_between_them_are_not_two_in_a_row(tmp_path):
    """Bad sectors do not mean a bad disk: each costs a segment, and the journal continues."""
    files = FaultyFiles("pwrite", FOREVER, FOREVER, errno.EIO)
    journal = begin(Journal.open(tmp_path, segment_bytes=4 * SEGMENT, files=files))
    acked: list[bytes] = []
    for _ in range(3):
        fill_up(journal, acked, 2)
        files.first = files.last = files.count + 1
        fill_up(journal, acked, 1)

    assert (journal.statistics().poisoned, journal.statistics().failed) == (3, None)
    journal.close()
    check_reopened(tmp_path, acked, acked)


def fill_up(journal: Journal, acked: list[bytes], count: int = 100) -> None:
    for n in range(count):
        commit(journal, [event(n)])
        acked.append(event(n))


@pytest.mark.parametrize("call", ["create", "pwrite", "fsync"])
def test_a_full_disk_is_said_and_the_same_journal_goes_on_when_there_is_space(tmp_path, call):
    """There is no space for the next segment at any point of making it: JournalFull each time, and nothing freezes."""
    files = FaultyFiles(call, FOREVER, FOREVER, errno.ENOSPC)
    journal = begin(Journal.open(tmp_path, segment_bytes=SEGMENT, files=files))
    acked: list[bytes] = []
    fill_up(journal, acked, 3)
    files.strike_in_spares()
    for _ in range(3):
        with pytest.raises(JournalFull, match="no space") as full:
            fill_up(journal, acked)
        assert full.value.errno == errno.ENOSPC
        assert journal.statistics().failed is None
    assert list(tmp_path.glob("*.tmp")) == []
    files.only_spares, files.first = False, FOREVER
    fill_up(journal, acked, 50)
    assert journal.statistics().poisoned == 0
    journal.close()
    check_reopened(tmp_path, acked, acked)


def test_a_refusal_leaves_every_byte_as_it_was(tmp_path):
    """A damaged journal is refused, and only the lock file was added to the folder."""
    with begin(Journal.open(tmp_path, segment_bytes=SEGMENT)) as journal:
        for n in range(10):
            commit(journal, [event(n)])
    path = max(tmp_path.glob("*.wal"))
    image = bytearray(path.read_bytes())
    image[2 * 4096 + 270] ^= 1
    path.write_bytes(image)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}

    with pytest.raises(JournalDamaged):
        Journal.open(tmp_path, segment_bytes=SEGMENT)

    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


class Small(Files):
    """A disk with limited space. Writes at its end are cut short or fail with EIO; removed files free their space."""

    def __init__(self, left: int, how: str) -> None:
        self.left, self.how = left, how
        self.taken: dict[Path, int] = {}
        self.paths: dict[int, Path] = {}

    def create(self, path):
        descriptor = super().create(path)
        self.paths[descriptor] = path
        return descriptor

    def free_bytes(self, place):
        return self.left

    def pwrite(self, descriptor, data, offset):
        growth = max(0, offset + len(data) - self.size(descriptor))
        if growth > self.left and self.how == "EIO":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        taken = len(data) - max(0, growth - self.left)
        if growth:
            path = self.paths[descriptor]
            self.taken[path] = self.taken.get(path, 0) + min(growth, self.left)
            self.left -= min(growth, self.left)
        return super().pwrite(descriptor, data[:taken], offset)

    def rename(self, source, target):
        super().rename(source, target)
        self.taken[target] = self.taken.pop(source, 0)

    def unlink(self, path):
        super().unlink(path)
        self.left += self.taken.pop(path, 0)


@pytest.mark.parametrize("how", ["short", "EIO"])
def test_want_of_space_is_said_also_where_the_system_says_something_else(tmp_path, how):
    """A short write or EIO on a full disk becomes JournalFull; with space again the same journal continues."""
    files = Small(5 * SEGMENT // 2, how)
    journal = begin(Journal.open(tmp_path, segment_bytes=SEGMENT, files=files))
    acked: list[bytes] = []
    with pytest.raises(JournalFull, match="no space") as full:
        fill_up(journal, acked, 1000)
    assert full.value.errno == errno.ENOSPC
    assert journal.statistics().failed is None
    files.left = 100 * SEGMENT
    fill_up(journal, acked, 50)
    assert (journal.statistics().poisoned, journal.statistics().failed) == (0, None)
    journal.close()
    check_reopened(tmp_path, acked, acked)


@pytest.mark.parametrize("how", ["short", "EIO"])
def test_a_new_journal_on_a_small_disk_begins_with_a_segment_that_fits(tmp_path, how):
    """The run can then record that space is missing; the next segment is longer."""
    files = Small(300_000, how)
    journal = begin(Journal.open(tmp_path, segment_bytes=4_000_000, files=files))
    acked: list[bytes] = []
    with pytest.raises(JournalFull):
        fill_up(journal, acked, 1000)
    assert len(acked) > 20
    files.left = 50_000_000
    fill_up(journal, acked, 50)
    journal.close()

    sizes = [path.stat().st_size for path in sorted(tmp_path.glob("*.wal"))]
    assert sizes == [262_144, 1_048_576]
    check_reopened(tmp_path, acked, acked)


def test_a_disk_without_room_for_the_least_segment_refuses_a_new_journal(tmp_path):
    """JournalFull is raised and no file stays; the caller decides what follows."""
    with pytest.raises(JournalFull):
        begin(Journal.open(tmp_path, segment_bytes=4_000_000, files=Small(200_000, "short")))
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]
