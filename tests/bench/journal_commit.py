"""The price of durability: the journal beside the bare write under it and beside other stores, on the disk of a folder.

The rounds of all of them are interleaved, so that what else the machine does falls on each. Shown are the median of the
rounds' medians and their range. Nothing is judged here: the table is for whoever reads it.

    python -m tests.bench.journal_commit [--folder DIR] [--rounds 9] [--writes 200]

SQLite is always there; LMDB and RocksDB if `lmdb` and `rocksdict` are installed (the extra `bench`).
"""

from __future__ import annotations

import argparse
import fcntl
import importlib
import importlib.util
import mmap
import multiprocessing
import os
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from journal import Journal
from tests.bench.machine import burners, machine, scheduled

EVENT = msgspec.msgpack.encode({"type": "StepReported", "wall": 1, "mono": 2, "filler": "x" * 160})
SIZES = (1, 64, 512)
FLOOR = "bare 4 KiB write"

Write = Callable[[int], object]  # so many events in one durable commit
Prices = dict[str, list[float]]  # the median of each round, in microseconds


def timed(call: Callable[[], object], times: int) -> list[float]:
    """So many calls, in microseconds."""
    took = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        took.append((time.perf_counter() - start) * 1e6)
    return took


def bare(folder: Path, writes: int) -> Write:
    """4 KiB at a time, O_DIRECT if it works, and O_DSYNC, into a file of written zeros: the floor."""
    piece = mmap.mmap(-1, 1 << 20)
    descriptor = os.open(folder / "bare", os.O_RDWR | os.O_CREAT | os.O_DSYNC)
    size = -(-4096 * writes // len(piece)) * len(piece)
    for at in range(0, size, len(piece)):
        os.pwrite(descriptor, piece, at)
    os.fsync(descriptor)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_DIRECT)
        os.preadv(descriptor, [mmap.mmap(-1, 4096)], 0)
    except OSError:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) & ~os.O_DIRECT)
    block = memoryview(piece)[:4096]
    offsets = iter(range(0, 4096 * writes, 4096))
    return lambda _count: os.pwrite(descriptor, block, next(offsets))


def opened(folder: Path) -> Journal:
    """A new journal, begun."""
    journal = Journal.open(folder)
    journal.begin(run_id=bytes(16), context_hash=bytes(32), capture=lambda: b"\xc0", wall_ns=0, boot_id=bytes(16))
    return journal


def journaled(folder: Path) -> Write:
    """The journal itself."""
    journal = opened(folder / "journal")
    return lambda count: journal.commit([EVENT] * count, epoch=1, step=1, wall_ns=1, mono_ns=1)


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
    """LMDB, synced at every commit; many events in one call, as it likes them best."""
    base = importlib.import_module("lmdb").open(str(folder / "lmdb"), map_size=1 << 32)
    numbers = iter(range(1 << 62))

    def write(count: int) -> None:
        with base.begin(write=True) as transaction, transaction.cursor() as cursor:
            cursor.putmulti([(next(numbers).to_bytes(8, "big"), EVENT) for _ in range(count)], append=True)

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


PEERS = (("SQLite", sqlite, "sqlite3"), ("LMDB", lmdb, "lmdb"), ("RocksDB", rocksdb, "rocksdict"))
# The factor by which the journal must beat its peers, in commits a second of so many events.
WANTED = {("SQLite", 1): 1.6, ("LMDB", 1): 1.8, ("RocksDB", 1): 1.4} | {
    ("SQLite", 512): 5.0,
    ("LMDB", 512): 2.5,
    ("RocksDB", 512): 2.2,
}


def stores(folder: Path) -> Iterator[tuple[str, Write]]:
    """The journal and its peers, those that are installed."""
    yield "journal", journaled(folder)
    for name, store, module in PEERS:
        if importlib.util.find_spec(module):
            yield name, store(folder)


def missing() -> list[str]:
    """The peers that are not measured, and why."""
    absent = [(name, module) for name, _, module in PEERS if not importlib.util.find_spec(module)]
    return [f"{name}: skipped, the package {module} is not installed (extra bench)" for name, module in absent]


def label(name: str, count: int) -> str:
    """How a store and a number of events are shown."""
    return f"{name}, {count} event{'s' if count > 1 else ''}"


def prices(folder: Path, rounds: int, writes: int) -> Prices:
    """Microseconds of a durable commit, by store and number of events."""
    floor, several = bare(folder, rounds * writes), list(stores(folder))
    took: Prices = {}
    for _ in range(rounds):
        took.setdefault(FLOOR, []).append(statistics.median(timed(lambda: floor(1), writes)))
        for name, write in several:
            for count in SIZES:
                times = max(8, writes // {1: 1, 64: 4}.get(count, 10))
                median = statistics.median(timed(lambda write=write, count=count: write(count), times))
                took.setdefault(label(name, count), []).append(median)
    return took


def crowded(folder: Path, writes: int) -> dict[str, tuple[float, float] | str]:
    """Median and 99th percentile of a commit, in microseconds, beside two processes that only compute."""
    found: dict[str, tuple[float, float] | str] = {}
    for name, policy in (("SCHED_FIFO 1", os.SCHED_FIFO), ("the ordinary class", os.SCHED_OTHER)):
        receive, send = multiprocessing.Pipe(duplex=False)
        with burners(2):
            child = multiprocessing.get_context("fork").Process(
                target=_crowded, args=(folder / name.replace(" ", "-"), writes, policy, send)
            )
            child.start()
            found[name] = receive.recv() if receive.poll(60) else "no answer within a minute"
            child.terminate()
            child.join()
    return found


def _crowded(folder: Path, writes: int, policy: int, send: object) -> None:
    refused = scheduled(policy)
    if refused:
        send.send(refused)
        return
    write = journaled(folder)
    took = sorted(timed(lambda: write(1), writes))
    send.send((statistics.median(took), took[int(len(took) * 0.99)]))


def table(took: Prices, beside: dict[str, tuple[float, float] | str]) -> str:
    """The answer, for people."""
    floor = statistics.median(took[FLOOR])
    lines = [machine(), f"{len(took[FLOOR])} interleaved rounds; microseconds a durable commit"]
    lines.append(f"{'':38}{'median':>10}{'range':>20}{'/ bare':>8}")
    for name, values in took.items():
        median, span = statistics.median(values), f"{min(values):.0f} to {max(values):.0f}"
        lines.append(f"{name:38}{median:>10.1f}{span:>20}{median / floor:>8.2f}")
    lines.append("the journal's commits a second over a peer's (wanted)")
    for (peer, count), wanted in WANTED.items():
        if label(peer, count) in took:
            ratio = statistics.median(took[label(peer, count)]) / statistics.median(took[label("journal", count)])
            lines.append(f"{label(peer, count):38}{ratio:>10.2f}{f'({wanted})':>20}")
    lines += missing()
    lines.append("one event beside two CPU burners: median and p99 in microseconds")
    for name, one in beside.items():
        lines.append(f"{name:38}" + (one if isinstance(one, str) else f"{one[0]:>10.1f}{one[1]:>20.1f}"))
    return "\n".join(lines)


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
        print(table(took, crowded(folder, 1000)))


if __name__ == "__main__":
    main()
