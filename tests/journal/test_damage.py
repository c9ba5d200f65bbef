"""Fault classes 1 to 4: truncation, flipped bits, lost sectors in the last batch and in acknowledged ones.

For every damage two counts stay zero. The first is acknowledged events lost: the journal opened for writing without
them. The second is wrong events returned: events that were not committed, or in another order. A journal may always
refuse damage, but never a torn write.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from journal import Damage, Files, Journal, JournalDamaged, Reader, Verdict, verify
from journal.format import HEADER_BYTES
from tests.journal.make import (
    SMALL,
    MemoryFiles,
    begin,
    commit,
    entries,
    event,
    numbered,
    read_all,
    write_all_back,
)

FOLDER = Path("/journal")
SECTOR = 512


def journal_of(batches: list[list[bytes]], *, segment_blocks: int, alignment: int = SMALL, close: bool = True):
    """Return the image of a journal of one segment, and where each of its batches begins and ends."""
    files = MemoryFiles()
    journal = begin(Journal.open(FOLDER, segment_bytes=segment_blocks * alignment, alignment=alignment, files=files))
    places = []
    for step, batch in enumerate(batches):
        start = journal.statistics().segment_offset
        commit(journal, batch, step=step)
        places.append((start, journal.statistics().segment_offset))
    if close:
        journal.close()
    ((path, image),) = files.snapshot().items()
    return path, image, places


class Count:
    """Counts the outcomes, and the two counts that must stay zero."""

    def __init__(self, events: list[tuple[int, bytes]], acked: int) -> None:
        self.events, self.acked = events, acked
        self.outcomes: Counter[str] = Counter()
        self.lost = self.wrong = 0

    def open(self, path: Path, image: bytes) -> str:
        """Open one damaged image for writing and judge the outcome."""
        got, error = write_all_back(FOLDER, MemoryFiles({path: image}))
        if error is not None:
            outcome = error.damage.value if isinstance(error, JournalDamaged) else type(error).__name__
        else:
            outcome = "opened"
            self.lost += max(0, self.acked - len(got))
            self.wrong += got != self.events[: len(got)]
        self.outcomes[outcome] += 1
        return outcome

    def read(self, path: Path, image: bytes) -> None:
        """Read one damaged image. All events before the end or the refusal must be right."""
        got, _ = read_all(FOLDER, MemoryFiles({path: image}))
        self.wrong += got != self.events[: len(got)]
        self.outcomes["read"] += 1


@pytest.mark.parametrize("batches", [8, pytest.param(20, marks=pytest.mark.torture)])
def test_a_file_cut_at_any_byte_is_refused_and_read_up_to_there(batches):
    """Class 1: cut at every byte. A shorter file may have lost any event, so no cut file is opened."""
    events = [event(n) for n in range(batches)]
    path, image, _ = journal_of([[e] for e in events], segment_blocks=batches + 7)
    count = Count(numbered(events), acked=batches)

    for length in range(len(image)):
        count.open(path, image[:length])
        if length % 64 == 0:
            count.read(path, image[:length])

    print(f"class 1: {count.outcomes}, acknowledged events lost {count.lost}, wrong events {count.wrong}")
    assert set(count.outcomes) == {"header", "length", "read"}
    assert (count.lost, count.wrong) == (0, 0)


def test_a_last_write_cut_at_any_byte_is_torn_and_the_rest_is_kept():
    """Class 1 as after a crash: the file keeps its length, and the last write is incomplete."""
    events = [event(n) for n in range(4)] + [event(4, size=1200)]
    path, image, places = journal_of([[e] for e in events], segment_blocks=24, close=False)
    start, end = places[-1]
    count = Count(numbered(events), acked=4)

    for length in range(start, end):
        count.open(path, image[:length] + bytes(len(image) - length))

    print(f"class 1, torn: {count.outcomes}, acknowledged events lost {count.lost}, wrong events {count.wrong}")
    assert set(count.outcomes) == {"opened"}
    assert (count.lost, count.wrong) == (0, 0)


def flips(length: int, bits: int, rng: random.Random) -> Iterator[tuple[int, int]]:
    """Yield so many different bits of every byte."""
    for at in range(length):
        yield from ((at, bit) for bit in rng.sample(range(8), bits))


def flipped(image: bytes, at: int, bit: int) -> bytes:
    return image[:at] + bytes((image[at] ^ (1 << bit),)) + image[at + 1 :]


def flip_everywhere(batches: int, verified_max: int, rng: random.Random, *, bits: int = 2) -> None:
    """Class 2: flip `bits` of every byte and all bits of three headers in a journal of this many batches."""
    events = [event(n) for n in range(batches)]
    path, image, places = journal_of([[e] for e in events], segment_blocks=batches + 8)
    count = Count(numbered(events), acked=batches)
    used = places[-1][1] + SMALL  # the watermark of the clean close is after the last batch
    headers = [0, places[0][0], places[-1][0]]
    of_headers = [(at + n // 8, n % 8) for at in headers for n in range(HEADER_BYTES * 8)]
    chosen = [*flips(used, bits, rng), *of_headers]

    opened = [(at, bit) for at, bit in chosen if count.open(path, flipped(image, at, bit)) == "opened"]
    verified = rng.sample(opened, min(verified_max, len(opened)))
    undetected = [at for at, bit in verified if verdict(path, flipped(image, at, bit)) is Verdict.CLEAN]

    print(f"class 2: {count.outcomes}, acknowledged events lost {count.lost}, wrong events {count.wrong}")
    assert (count.lost, count.wrong, undetected) == (0, 0, [])
    assert all(in_padding_or_watermark(at, places, image) for at, _ in opened)


def test_no_flipped_bit_loses_or_changes_an_event(seed, monkeypatch):
    """Class 2 on four batches: opening finds every flip outside the padding, verify finds the others."""
    monkeypatch.setattr("journal.verification._IN_FLIGHT_PAUSE_S", 0.0)
    flip_everywhere(4, 500, random.Random(seed))


@pytest.mark.torture
def test_no_flipped_bit_in_a_longer_journal_loses_or_changes_an_event(seed, monkeypatch):
    """Class 2, ten batches: one bit of every byte. Of the flips that opening accepts, a sample is verified."""
    monkeypatch.setattr("journal.verification._IN_FLIGHT_PAUSE_S", 0.0)
    flip_everywhere(10, 100, random.Random(seed), bits=1)


@pytest.mark.torture
def test_no_flipped_bit_in_padding_is_unseen_by_verify(seed, monkeypatch):
    """Class 2: two bits of every byte of twenty batches; every flip that opening accepts is verified."""
    monkeypatch.setattr("journal.verification._IN_FLIGHT_PAUSE_S", 0.0)
    flip_everywhere(20, 1 << 30, random.Random(seed))


def verdict(path: Path, image: bytes) -> Verdict:
    return verify(FOLDER, files=MemoryFiles({path: image})).verdict


def in_padding_or_watermark(at: int, places: list[tuple[int, int]], image: bytes) -> bool:
    """Return whether a byte is neither in a header nor in an event: a flip there affects no acknowledged event."""
    return image[at] == 0 or at >= places[-1][1]


def test_a_flip_in_a_journal_at_rest_is_named_with_its_place():
    """The refusal names file, offset, sequence number and class."""
    events = [event(n) for n in range(6)]
    path, image, places = journal_of([[e] for e in events], segment_blocks=14)
    offset = places[3][0]

    got, error = write_all_back(FOLDER, MemoryFiles({path: flipped(image, offset + HEADER_BYTES + 5, 2)}))

    assert got == []
    assert isinstance(error, JournalDamaged)
    assert (error.path, error.offset, error.seq, error.damage) == (path, offset, 4, Damage.FRAME)
    assert str(offset) in str(error)
    assert "sequence number 4" in str(error)


SIZES = (100, 2_500, 9_000, 25_000)  # body lengths: a frame of 1, 1, 3 and 7 blocks of 4 096
CONTENTS = ("zero", "ones", "random", "old")


def sector_losses(image: bytes, start: int, end: int, rng: random.Random) -> Iterator[tuple[str, bytes]]:
    """Yield every subset of eight runs of sectors of one frame, with each kind of other content."""
    sectors = (end - start) // SECTOR
    edges = [start + SECTOR * (sectors * n // 8) for n in range(9)]
    old = image[start - (end - start) : start] if end - start <= start else image[:start].rjust(end - start, b"\0")
    instead = {
        "zero": bytes(end - start),
        "ones": b"\xff" * (end - start),
        "random": rng.randbytes(end - start),
        "old": old,
    }
    for content, chosen in itertools.product(CONTENTS, itertools.product((False, True), repeat=8)):
        broken = bytearray(image)
        for run in itertools.compress(range(8), chosen):
            at, to = edges[run], edges[run + 1]
            broken[at:to] = instead[content][at - start : to - start]
        yield content, bytes(broken)


def batches_with(size: int) -> list[list[bytes]]:
    return [[event(0)], [event(1)], [event(2, size=size)]]


@pytest.mark.sample(2)
@pytest.mark.parametrize("size", SIZES)
def test_sectors_lost_from_the_last_write_lose_nothing_acknowledged(size, seed):
    """Class 3: the last batch was never acknowledged. It is complete or it is cut, and the journal opens."""
    rng = random.Random(seed)
    batches = batches_with(size)
    path, image, places = journal_of(batches, segment_blocks=16, alignment=4096, close=False)
    count = Count(numbered(e for batch in batches for e in batch), acked=2)

    cases = Counter((content, count.open(path, broken)) for content, broken in sector_losses(image, *places[-1], rng))

    print(f"class 3, {size}: {cases}, acknowledged events lost {count.lost}, wrong events {count.wrong}")
    assert (count.lost, count.wrong, cases.total()) == (0, 0, 1024)
    # Only a whole older frame in the place of the last one is refused: no torn write leaves that.
    assert {outcome for content, outcome in cases if content != "old"} == {"opened"}
    assert {outcome for content, outcome in cases if content == "old"} <= {"opened", "misplaced"}


@pytest.mark.sample(2)
@pytest.mark.parametrize("size", SIZES)
def test_sectors_lost_from_an_acknowledged_write_are_refused(size, seed):
    """Class 4: the same in an acknowledged batch. The frame after it proves the damage: refused, never cut."""
    rng = random.Random(seed)
    batches = [*batches_with(size), [event(3)]]
    path, image, places = journal_of(batches, segment_blocks=16, alignment=4096)
    events = numbered(e for batch in batches for e in batch)
    count = Count(events, acked=4)
    start, end = places[2]
    content_end = start + HEADER_BYTES + 1 + len(batches[2][0])

    for _, broken in sector_losses(image, start, end, rng):
        outcome = count.open(path, broken)
        assert (outcome == "opened") == (broken[start:content_end] == image[start:content_end])

    print(f"class 4, {size}: {count.outcomes}, acknowledged events lost {count.lost}, wrong events {count.wrong}")
    assert (count.lost, count.wrong) == (0, 0)
    assert count.outcomes["frame"] > 0


def test_a_torn_tail_is_set_aside_and_the_journal_goes_on(tmp_path):
    """On real files: the torn bytes are copied and zeroed, and the next event takes the free number."""
    journal = begin(Journal.open(tmp_path, segment_bytes=65_536))
    first = [event(n) for n in range(3)]
    commit(journal, first)
    place = journal.statistics().segment_offset
    commit(journal, [event(9, size=6000)])
    (path,) = tmp_path.glob("*.wal")
    whole = path.read_bytes()
    journal.abandon_in_child()  # no watermark: what a crash leaves
    torn = whole[: place + 5000] + bytes(len(whole) - place - 5000)
    path.write_bytes(torn)

    with Reader(tmp_path) as reader:
        assert len(list(reader)) == 3
    journal = Journal.open(tmp_path, segment_bytes=65_536)
    assert path.read_bytes() == torn  # opening has written nothing
    assert entries(journal.records()) == numbered(first)
    recovery = journal.begin(
        run_id=bytes(range(16)), context_hash=bytes(32), capture=bytes, wall_ns=1, boot_id=bytes(16)
    )
    commit(journal, [event(4)])
    journal.close()

    assert (recovery.kind, recovery.file, recovery.offset) == ("torn", path, place)
    assert recovery.quarantine is not None
    assert recovery.quarantine.read_bytes() == torn[place : place + recovery.bytes_cut]
    assert verify(tmp_path).verdict is Verdict.CLEAN
    assert read_all(tmp_path, Files())[0] == numbered([*first, event(4)])
