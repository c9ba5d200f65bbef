"""A finished journal: as large as its content, with the same events, and ready to go on."""

from __future__ import annotations

import errno
import random
from pathlib import Path

from journal import Files, Journal, Reader, Verdict, verify
from tests.journal.make import FaultyFiles, MemoryFiles, begin, commit, entries, event, numbered, read_all
from tests.journal.test_power_cut import FOLDER, SIZES, Disk, PowerCut

DRAWS = 3


def on_disk(folder: Path) -> int:
    """Return the bytes that the files of a folder take."""
    return sum(path.stat().st_blocks * 512 for path in folder.iterdir())


def finished(folder: Path, events: list[bytes], files: Files | None = None, **sizes: int) -> None:
    """Open the journal, commit the events, finish and close."""
    with begin(Journal.open(folder, files=files or Files(), **sizes)) as journal:
        for n, one in enumerate(events, start=journal.last_seq + 1):
            commit(journal, [one], step=n)
        journal.finish(wall_ns=1, mono_ns=1)


def test_a_young_journal_is_small(tmp_path):
    """With the default length of 100 MB the first segment takes 256 KiB."""
    with begin(Journal.open(tmp_path)) as journal:
        commit(journal, [event(1)])
        assert on_disk(tmp_path) < 300_000


def test_a_finished_journal_is_as_large_as_its_content(tmp_path):
    """Two thousand steps of 4 KiB each take a few bytes each; no spare is left, and one short segment is unpacked."""
    written = [event(n) for n in range(2000)]
    with begin(Journal.open(tmp_path)) as journal:
        journal.start_preparing()
        for n, one in enumerate(written, start=1):
            commit(journal, [one], step=n)
        journal.finish(wall_ns=1, mono_ns=1)
    assert on_disk(tmp_path) < 400_000
    assert not list(tmp_path.glob("*.tmp"))
    (newest,) = tmp_path.glob("*.wal")
    assert newest.stat().st_size < 50_000
    assert verify(tmp_path).verdict is Verdict.CLEAN
    assert read_all(tmp_path, Files()) == (numbered(written), None)


def test_the_state_is_at_the_end(tmp_path):
    """A reader of a finished journal folds nothing: the newest capture is of the last event."""
    for last in (5, 10):
        finished(tmp_path, [event(n) for n in range(5)])
        with Reader(tmp_path) as reader:
            assert next(iter(reader.captures())).seq == last == reader.last_seq


def test_a_finished_journal_goes_on(tmp_path):
    """Three starts, each finished: all events in order, and the segments go on growing."""
    written = [event(n, size=3000) for n in range(300)]
    for part in (written[:100], written[100:200], written[200:]):
        finished(tmp_path, part)
        assert len(list(tmp_path.glob("*.wal"))) == 1
    with begin(Journal.open(tmp_path)) as journal:
        while max(path.stat().st_size for path in tmp_path.glob("*.wal")) < 1_000_000:
            written.append(event(len(written), size=3000))
            commit(journal, [written[-1]])
    assert verify(tmp_path).verdict is Verdict.CLEAN
    assert read_all(tmp_path, Files()) == (numbered(written), None)


def test_finishing_again_adds_at_most_one_segment(tmp_path):
    """A start of a complete run records little; the short segment has room for that."""
    finished(tmp_path, [event(0)] * 100)
    before = len(list(tmp_path.iterdir()))
    for _ in range(2):
        finished(tmp_path, [])
    assert len(list(tmp_path.iterdir())) <= before + 1
    assert verify(tmp_path).verdict is Verdict.CLEAN


def test_commits_after_a_finish_are_as_before(tmp_path):
    """Nothing requires that the journal is closed next."""
    with begin(Journal.open(tmp_path)) as journal:
        commit(journal, [event(0)])
        journal.finish(wall_ns=1, mono_ns=1)
        for n in range(1, 200):
            commit(journal, [event(n)])
    assert read_all(tmp_path, Files()) == (numbered([event(n) for n in range(200)]), None)


def test_a_full_disk_leaves_everything_where_it_was(tmp_path):
    """Without space for the short segment the journal stays as it was, and can be used and closed."""
    files = FaultyFiles("create", 2, 1000, errno.ENOSPC)
    with begin(Journal.open(tmp_path, files=files)) as journal:
        commit(journal, [event(0)])
        journal.finish(wall_ns=1, mono_ns=1)
        assert journal.statistics().segment_no == 1
        commit(journal, [event(1)])
    assert verify(tmp_path).verdict is Verdict.CLEAN
    assert read_all(tmp_path, Files()) == (numbered([event(0), event(1)]), None)


def test_packing_ends_after_its_time(tmp_path, monkeypatch):
    """A daemon that ends does not wait for ever: what is not packed then is packed by the next one."""
    monkeypatch.setattr("journal.packing._LAST_S", -1.0)
    finished(tmp_path, [event(0)] * 10)
    assert len(list(tmp_path.glob("*.wal"))) == 2
    assert not list(tmp_path.glob("*.tmp"))
    monkeypatch.undo()
    finished(tmp_path, [])
    assert len(list(tmp_path.glob("*.wal"))) == 1


def test_a_power_cut_at_any_operation_of_finishing_loses_nothing(seed):
    """Cut at operation 1, 2, 3 and so on: every event is found, and a later finish tidies up."""
    written = [event(n, size=n * 97 % 1500) for n in range(20)]
    start = MemoryFiles()
    with begin(Journal.open(FOLDER, files=start, **SIZES)) as journal:
        for one in written:
            commit(journal, [one])
    rng, cut = random.Random(seed), 0
    while True:
        cut += 1
        disk = Disk(start.snapshot(), 1 + cut // DRAWS, rng)
        try:
            finished(FOLDER, [], disk, **SIZES)
        except PowerCut:
            pass
        else:
            break
        after = MemoryFiles(disk.after_the_cut())
        with Journal.open(FOLDER, files=after, **SIZES) as journal:
            assert entries(journal.records()) == numbered(written)
        finished(FOLDER, [], after, **SIZES)
        assert verify(FOLDER, files=after).verdict is Verdict.CLEAN
        assert not [path for path in after.images if path.suffix == ".tmp"]
        assert sum(path.suffix == ".wal" for path in after.images) == 1
    print(f"finishing cut at {cut // DRAWS} operations, events lost 0")
    assert cut // DRAWS > 8
