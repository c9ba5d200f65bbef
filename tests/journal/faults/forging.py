"""Journals with forged fields, forged seals and noise, drawn from a seed, and all code that reads them.

A reader may answer or refuse. Any other exception, or no answer in time, counts as an accident.
"""

from __future__ import annotations

import contextlib
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator

import msgspec

from journal import JournalError, Reader, plan_repair, summarize, verify
from journal.format import ENTRY_FIELDS, SEGMENT_FIELDS, FrameKind
from tests.journal.faults.harness import open_journal
from tests.journal.faults.lab import (
    FOLDER,
    PLAN,
    Images,
    Piece,
    forged,
    forged_header,
    make_journal,
    pieces_of,
    put,
    put_pieces,
    rewritten,
)
from tests.journal.make import MemoryFiles

EXTREMES = (
    0,
    1,
    2,
    255,
    511,
    513,
    4096,
    65_535,
    1 << 31,
    (1 << 32) - 1,
    1 << 62,
    (1 << 63) - 1,
    1 << 63,
    (1 << 64) - 1,
)
# Some hundred times what an answer takes.
ANSWER_S_MAX = 5


class TooLong(BaseException):
    """No answer came in time. It is no Exception, so no reader catches it."""


@contextlib.contextmanager
def in_time() -> Iterator[None]:
    """Raise TooLong if no answer comes in time."""

    def over(*_given: object) -> None:
        raise TooLong

    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(ANSWER_S_MAX)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


class Fuzz:
    """Small journals with forged fields, given to every reader."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.images, _ = make_journal()

    def run(self, cases: int) -> Counter[str]:
        """Try this many journals, each broken in another way."""
        for number in range(cases):
            images = dict(self.images)
            what = self._break(images)
            for name, act in EVERYONE.items():
                self._try(f"case {number}, {what}, {name}", act, images)
        return self.counts

    def _break(self, images: Images) -> str:
        rng, path = self.rng, self.rng.choice(sorted(images))
        how = rng.choice(("segment header", "entry header", "chained entry header", "seal", "bytes"))
        if how == "segment header":
            field = rng.choice([field for field in SEGMENT_FIELDS[1:-1] if field.name != "reserved"])
            images[path] = forged_header(images[path], **{field.name: self._value(field.size, field.code)})
            return f"{path.name}, {field.name}"
        pieces = pieces_of(images[path])
        if how == "bytes":
            at = rng.randrange(len(images[path]))
            images[path] = put(images[path], at, rng.randbytes(rng.choice((1, 8, 300))))
            return f"{path.name}, bytes at {at}"
        victim = rng.choice(pieces)
        if how == "seal":
            body = msgspec.msgpack.encode(self._seal())
            changed = forged(victim, body, kind=int(FrameKind.SEAL), count=0)
        else:
            field = rng.choice([field for field in ENTRY_FIELDS[1:-2] if field.name != "reserved"])
            value = self._value(field.size, field.code)
            if field.name in ("offset", "previous_offset") and rng.random() < 0.5:
                value = rng.choice(pieces).offset
            header = msgspec.structs.replace(victim.header, **{field.name: value})
            changed = forged(Piece(victim.offset, victim.end, header, victim.body))
            if field.name == "body_bytes":
                changed = forged(victim)
        if how == "entry header":
            images[path] = put_pieces(images[path], [changed])
        else:
            images.update(rewritten(images, path, [changed if one == victim else one for one in pieces]))
        return f"{path.name}, {how} at {victim.offset}"

    def _value(self, size: int, code: str) -> int | bytes:
        if code.endswith("s"):
            return self.rng.randbytes(size)
        value = self.rng.choice(EXTREMES) & ((1 << 8 * size) - 1)
        return value - (1 << 64) if code == "q" and value >= 1 << 63 else value

    def _seal(self) -> object:
        rng = self.rng
        rows = [[rng.choice((-1, *EXTREMES)) for _ in range(5)] for _ in range(rng.randrange(4))]
        whole = {"first_seq": 1, "last_seq": 2, "frames": 3, "events": 2, "chain": bytes(32), "index": rows}
        return rng.choice((whole, {**whole, "events": -5}, {"index": rows}, [], None, "seal", 7))

    def _try(self, what: str, act: Callable[[MemoryFiles], object], images: Images) -> None:
        try:
            with in_time():
                act(MemoryFiles(images))
        except JournalError as error:
            self.counts[type(error).__name__] += 1
        except (Exception, TooLong) as error:
            print(f"class 18, {what}: {error!r}")
            self.counts["accidents"] += 1
        else:
            self.counts["answers"] += 1


def opened(files: MemoryFiles) -> None:
    with open_journal(FOLDER, PLAN, files) as journal:
        list(journal.captures())
        list(journal.records())


def read(files: MemoryFiles) -> None:
    with Reader(FOLDER, files=files) as reader:
        list(reader.records())


def sought(**place: int) -> Callable[[MemoryFiles], None]:
    def seek(files: MemoryFiles) -> None:
        with Reader(FOLDER, files=files) as reader:
            list(reader.seek(**place))

    return seek


def ended(files: MemoryFiles) -> None:
    with Reader(FOLDER, files=files) as reader:
        list(reader.captures())
        reader.tail(7)


EVERYONE: dict[str, Callable[[MemoryFiles], object]] = {
    "open": opened,
    "read": read,
    "seek a number": sought(seq=60),
    "seek a step": sought(step=60),
    "seek a time": sought(time_ns=60),
    "tail": ended,
    "last_seq": lambda files: Reader(FOLDER, files=files).last_seq,
    "verify": lambda files: verify(FOLDER, files=files),
    "plan a repair": lambda files: plan_repair(FOLDER, files=files),
    "summarize": lambda files: summarize(FOLDER, files=files),
}
