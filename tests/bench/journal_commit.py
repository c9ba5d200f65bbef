"""What a commit costs beside the bare write under it, on the disk of the folder given.

Rounds of the two are interleaved, so that what else the machine does falls on both. Nothing is judged here: the table is
for whoever reads it.

    python -m tests.bench.journal_commit [--folder DIR] [--rounds 5] [--writes 500]
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from journal import Journal, Reader

BLOCK = bytes(4096)
EVENT = msgspec.msgpack.encode(
    {"type": "StepReported", "wall": 1, "mono": 2, "cause": 3, "root": 4, "step": 5, "loss": 0.5, "grad_norm": 1.5}
)


def timed(call: Callable[[], object], times: int) -> list[float]:
    """Microseconds of each of so many calls."""
    took = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        took.append((time.perf_counter() - start) * 1e6)
    return took


def raw_writer(folder: Path, writes: int) -> Iterator[None]:
    """4 KiB at a time, O_DSYNC, into a file of written zeros: the floor."""
    path = folder / "raw"
    path.write_bytes(bytes(4096 * writes))
    descriptor = os.open(path, os.O_RDWR | os.O_DSYNC)
    os.fsync(descriptor)
    for offset in range(0, 4096 * writes, 4096):
        yield
        os.pwrite(descriptor, BLOCK, offset)
    os.close(descriptor)


def prices(folder: Path, rounds: int, writes: int) -> dict[str, list[float]]:
    """Microseconds of every write, by kind of write."""
    raw = raw_writer(folder, rounds * writes + 1)
    next(raw)
    journal = Journal.open(folder / "journal")
    journal.begin(run_id=bytes(16), context_hash=bytes(32), capture=lambda: b"\xc0", wall_ns=0, boot_id=bytes(16))
    batches = {"commit of 1 event": [EVENT], "commit of 64 events": [EVENT] * 64, "commit of 512 events": [EVENT] * 512}
    took: dict[str, list[float]] = {"bare 4 KiB write": [], **{name: [] for name in batches}}
    for _ in range(rounds):
        took["bare 4 KiB write"] += timed(lambda: next(raw), writes)
        for name, batch in batches.items():
            took[name] += timed(
                lambda batch=batch: journal.commit(batch, epoch=1, step=1, wall_ns=1, mono_ns=1), writes
            )
    journal.close()
    return took


def replay_rate(folder: Path) -> float:
    """Events read and verified a second, from the page cache."""
    start = time.perf_counter()
    with Reader(folder / "journal") as reader:
        count = sum(1 for _ in reader)
    return count / (time.perf_counter() - start)


def table(took: dict[str, list[float]], rate: float) -> str:
    """The answer, for people."""
    floor = statistics.median(took["bare 4 KiB write"])
    lines = [f"{'':24}{'p50 us':>10}{'p99 us':>10}{'p50 / bare':>12}"]
    for name, values in took.items():
        median, p99 = statistics.median(values), statistics.quantiles(values, n=100)[98]
        lines.append(f"{name:24}{median:>10.1f}{p99:>10.1f}{median / floor:>12.2f}")
    return "\n".join([*lines, f"reading and verifying: {rate:,.0f} events/s"])


def main() -> None:
    """Run it from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path.cwd(), help="on the disk to be measured")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--writes", type=int, default=500, help="of each kind in each round")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
        took = prices(Path(scratch), options.rounds, options.writes)
        print(table(took, replay_rate(Path(scratch))))


if __name__ == "__main__":
    main()
