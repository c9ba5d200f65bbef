"""A writer that progresses between any two reads of a reader.

A seed draws every schedule, and no test waits for real time.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from journal import Journal, Reader, Verdict, verify
from tests.journal.make import MemoryFiles, begin, commit, event, numbered

FOLDER = Path("/journal")
SECTOR = 512
BATCHES = 100
SCHEDULES = 50


class Recording(MemoryFiles):
    """Record every change in the order in which another process could see it: a write sector by sector."""

    def __init__(self) -> None:
        super().__init__()
        self.changes: list[tuple] = []

    def create(self, path):
        self.changes.append(("create", path))
        return super().create(path)

    def pwrite(self, descriptor, data, offset):
        path = self.open[descriptor]
        for at in range(0, len(data), SECTOR):
            self.changes.append(("write", path, data[at : at + SECTOR], offset + at))
        return super().pwrite(descriptor, data, offset)

    def rename(self, source, target):
        self.changes.append(("rename", source, target))
        super().rename(source, target)

    def unlink(self, path):
        self.changes.append(("unlink", path))
        super().unlink(path)


class Replaying(MemoryFiles):
    """A reader's files: before each read, more of the writer's changes may have happened."""

    def __init__(self, changes: list[tuple], rng: random.Random, first: int) -> None:
        super().__init__()
        self.changes, self.rng = iter(changes), rng
        self.left = len(changes)
        self.paces = rng.choice([[0, 1, 2], [0, 0, 5, 30], [*[0] * 30, 100, 300]])
        self.advance(first)

    def advance(self, number: int) -> None:
        for _ in range(min(number, self.left)):
            self.left -= 1
            what, path, *rest = next(self.changes)
            if what == "create":
                self.images[path] = bytearray()
            elif what == "write":
                data, offset = rest
                self.images[path].extend(bytes(max(0, offset - len(self.images[path]))))
                self.images[path][offset : offset + len(data)] = data
            elif what == "rename":
                self.rename(path, rest[0])
            else:
                self.unlink(path)

    def _meanwhile(self) -> None:
        self.advance(self.rng.choice(self.paces))

    def names(self, folder):
        # A folder is not read at one moment either: of the names given meanwhile, any may be missed.
        self._meanwhile()
        before = super().names(folder)
        self._meanwhile()
        return before + [name for name in super().names(folder) if name not in before and self.rng.random() < 0.5]

    def size(self, descriptor):
        self._meanwhile()
        return super().size(descriptor)

    def pread(self, descriptor, length, offset):
        # Sector by sector, as a reader really overtakes a write or is overtaken by one.
        self._meanwhile()
        data = super().pread(descriptor, length, offset)
        if len(data) > SECTOR:
            split = self.rng.randrange(0, len(data), SECTOR)
            self._meanwhile()
            data = data[:split] + super().pread(descriptor, length - split, offset + split)
        return data


@pytest.fixture(scope="module")
def written() -> tuple[list[tuple], int]:
    """Return all changes of one writer over several segments, and how many of them belong to the first segment."""
    files = Recording()
    with begin(Journal.open(FOLDER, segment_bytes=24 * SECTOR, alignment=SECTOR, files=files)) as journal:
        first = len(files.changes)
        for n in range(BATCHES):
            commit(journal, [event(n, size=n * 97 % 1400)], step=n)
    return files.changes, first


@pytest.fixture
def schedules(written, seed, monkeypatch):
    """Yield replays of the same writer at different speeds; a reader's pause lets the writer progress too."""
    rng = random.Random(seed)
    changes, first = written

    def dealt():
        for _ in range(SCHEDULES):
            files = Replaying(changes, random.Random(rng.random()), first)
            monkeypatch.setattr("time.sleep", lambda _s, files=files: files.advance(3))
            yield files

    return dealt()


def test_verify_finds_no_damage_however_far_the_writer_gets_between_two_reads(schedules):
    """A partial write, a half done rotation or a segment that grew: the verdict is clean, or a write in flight."""
    segments = 0
    for files in schedules:
        while files.left:
            report = verify(FOLDER, files=files)
            assert report.verdict in (Verdict.CLEAN, Verdict.TORN_TAIL), report.problem
            segments = max(segments, report.segments)
        assert verify(FOLDER, files=files).events == BATCHES
    assert segments > 3


def test_a_follower_gets_every_event_however_far_the_writer_gets_between_two_reads(schedules):
    """It gets no event twice, misses none, and finds no damage."""
    for files in schedules:
        with Reader(FOLDER, files=files) as reader:
            seen = list(reader.follow(until=lambda files=files: not files.left, sleep=lambda _s: None))
        assert [(e.seq, bytes(e.event)) for e in seen] == numbered(event(n, size=n * 97 % 1400) for n in range(BATCHES))


def test_the_last_entries_are_right_however_far_the_writer_gets_between_two_reads(schedules):
    """`tail` and `last_seq` read backwards from a moving end and return consecutive entries with the right content."""
    for files in schedules:
        while files.left:
            with Reader(FOLDER, files=files) as reader:
                last = reader.tail(5)
                assert reader.last_seq >= (last[-1].seq if last else 0)
            assert [e.seq for e in last] == [last[0].seq + place for place in range(len(last))] if last else True
            assert all(bytes(e.event) == event(e.seq - 1, size=(e.seq - 1) * 97 % 1400) for e in last)
