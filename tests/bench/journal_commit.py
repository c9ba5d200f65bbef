"""What durability costs: the journal beside the bare write under it and beside other stores, on the disk of a folder.

The rounds of all of them are interleaved, so that what else the machine does falls on each. Shown are the median of the
rounds' medians and their range. Nothing is judged here: the table is for whoever reads it.

    python -m tests.bench.journal_commit [--folder DIR] [--rounds 9] [--writes 200]

SQLite is always there; LMDB and RocksDB where `lmdb` and `rocksdict` are installed (the extra `bench`).
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import importlib.util
import os
import platform
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from journal import Journal, Reader

BLOCK = bytes(4096)
EVENT = msgspec.msgpack.encode({"type": "StepReported", "wall": 1, "mono": 2, "filler": "x" * 160})
MANY = 512
TASKS, EVENTS_A_TASK, BULK = 256, 20, 50_000
FLOOR = "bare 4 KiB write"

Write = Callable[[int], object]  # so many events in one durable commit
Prices = dict[str, list[float]]  # the median of each round: microseconds, or events a second


def timed(call: Callable[[], object], times: int) -> float:
    """Median of so many calls, in microseconds."""
    took = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        took.append((time.perf_counter() - start) * 1e6)
    return statistics.median(took)


def bare(folder: Path, writes: int) -> Write:
    """4 KiB at a time, O_DSYNC, into a file of written zeros: the floor."""
    path = folder / "bare"
    path.write_bytes(bytes(4096 * writes))
    descriptor = os.open(path, os.O_RDWR | os.O_DSYNC)
    os.fsync(descriptor)
    offsets = iter(range(0, 4096 * writes, 4096))
    return lambda _count: os.pwrite(descriptor, BLOCK, next(offsets))


def opened(folder: Path) -> Journal:
    """A new journal, begun."""
    journal = Journal.open(folder)
    journal.begin(run_id=bytes(16), context_hash=bytes(32), capture=lambda: b"\xc0", wall_ns=0, boot_id=bytes(16))
    return journal


def sqlite(folder: Path) -> Write:
    """SQLite with a write-ahead log, synchronous=FULL."""
    base = sqlite3.connect(folder / "sqlite", isolation_level=None)
    base.execute("pragma journal_mode=wal")
    base.execute("pragma synchronous=full")
    base.execute("create table events (seq integer primary key, event blob)")

    def write(count: int) -> None:
        base.execute("begin")
        base.executemany("insert into events (event) values (?)", [(EVENT,)] * count)
        base.execute("commit")

    return write


def lmdb(folder: Path) -> Write:
    """LMDB, synced at every commit."""
    base = importlib.import_module("lmdb").open(str(folder / "lmdb"), map_size=1 << 32)
    numbers = iter(range(1 << 62))

    def write(count: int) -> None:
        with base.begin(write=True) as transaction:
            for _ in range(count):
                transaction.put(next(numbers).to_bytes(8, "big"), EVENT, append=True)

    return write


def rocksdb(folder: Path) -> Write:
    """RocksDB, its log synced at every batch."""
    rocks = importlib.import_module("rocksdict")
    base = rocks.Rdict(str(folder / "rocksdb"), rocks.Options(raw_mode=True))
    synced = rocks.WriteOptions()
    synced.sync = True
    numbers = iter(range(1 << 62))

    def write(count: int) -> None:
        batch = rocks.WriteBatch(raw_mode=True)
        for _ in range(count):
            batch.put(next(numbers).to_bytes(8, "big"), EVENT)
        base.write(batch, synced)

    return write


def stores(folder: Path) -> Iterator[tuple[str, Write]]:
    """The journal and its peers, those that are installed."""
    journal = opened(folder / "journal")
    yield "journal", lambda count: journal.commit([EVENT] * count, epoch=1, step=1, wall_ns=1, mono_ns=1)
    yield "SQLite", sqlite(folder)
    if importlib.util.find_spec("lmdb"):
        yield "LMDB", lmdb(folder)
    if importlib.util.find_spec("rocksdict"):
        yield "RocksDB", rocksdb(folder)


def prices(folder: Path, rounds: int, writes: int) -> Prices:
    """Microseconds of a durable commit, by store and number of events."""
    floor = bare(folder, rounds * writes)
    several = list(stores(folder))
    took: Prices = {}
    for _ in range(rounds):
        took.setdefault(FLOOR, []).append(timed(lambda: floor(1), writes))
        for name, write in several:
            for count, times in ((1, writes), (64, writes // 4), (MANY, writes // 10)):
                label = f"{name}, {count} event{'s' if count > 1 else ''}"
                took.setdefault(label, []).append(timed(lambda write=write, count=count: write(count), times))
    return took


async def _await_each(journal: Journal) -> None:
    async def one() -> None:
        for _ in range(EVENTS_A_TASK):
            journal.append(EVENT, epoch=1, step=1)
            await journal.durable_async()

    await asyncio.gather(*(one() for _ in range(TASKS)))


def _bulk(journal: Journal) -> None:
    for _ in range(BULK):
        journal.append(EVENT, epoch=1, step=1)
    journal.durable()


def group_rates(folder: Path, rounds: int) -> Prices:
    """Events a second through the group commit."""
    rates: Prices = {f"{TASKS} tasks, each awaits every event": [], f"{BULK} events, one wait": []}
    journal = opened(folder / "grouped")
    works = ((lambda: asyncio.run(_await_each(journal)), TASKS * EVENTS_A_TASK), (lambda: _bulk(journal), BULK))
    for _ in range(rounds):
        for label, (work, events) in zip(rates, works, strict=True):
            start = time.perf_counter()
            work()
            rates[label].append(events / (time.perf_counter() - start))
    journal.close()
    return rates


def replay_rate(folder: Path) -> float:
    """Events read and verified a second, from the page cache."""
    start = time.perf_counter()
    with Reader(folder / "journal") as reader:
        count = sum(1 for _ in reader)
    return count / (time.perf_counter() - start)


def table(took: Prices, rates: Prices, replayed: float) -> str:
    """The answer, for people."""
    floor = statistics.median(took[FLOOR])
    rounds = len(took[FLOOR])
    lines = [
        f"{platform.machine()}, {os.cpu_count()} cores, {rounds} interleaved rounds; microseconds a durable commit"
    ]
    lines.append(f"{'':38}{'median':>10}{'range':>20}{'/ bare':>8}")
    for label, values in took.items():
        median, span = statistics.median(values), f"{min(values):.0f} to {max(values):.0f}"
        lines.append(f"{label:38}{median:>10.1f}{span:>20}{median / floor:>8.2f}")
    lines.append("events a second through append")
    for label, values in rates.items():
        span = f"{min(values):,.0f} to {max(values):,.0f}"
        lines.append(f"{label:38}{statistics.median(values):>10,.0f}{span:>24}")
    return "\n".join([*lines, f"reading and verifying: {replayed:,.0f} events/s"])


def main() -> None:
    """Run it from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path.cwd(), help="on the disk to be measured")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--writes", type=int, default=200, help="of one event in each round")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
        folder = Path(scratch)
        took = prices(folder, options.rounds, options.writes)
        print(table(took, group_rates(folder, options.rounds), replay_rate(folder)))


if __name__ == "__main__":
    main()
