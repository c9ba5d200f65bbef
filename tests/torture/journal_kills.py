"""Fault class 8: a writer is SIGKILLed at random times while somebody else counts what it acknowledged.

A child commits batches to a journal on a real file system and reports each acknowledged sequence number through a pipe.
The parent kills it at a drawn moment and opens the journal as a daemon would. Every acknowledged event must be there,
unchanged, in order, and nothing that was not committed. The same journal goes on to the next kill.

    python -m tests.torture.journal_kills [--kills 1000] [--seed N] [--folder DIR]
"""

from __future__ import annotations

import argparse
import os
import random
import secrets
import signal
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import msgspec

from journal import Journal, JournalEntry, Reader, Verdict, verify

SEGMENT_BYTES = 65_536
KILLS_PER_JOURNAL = 30  # each start reads what the ones before it wrote
RUN, CONTEXT, BOOT = bytes(16), bytes(32), bytes(16)
ACK = struct.Struct("<Q")


def event(seq: int) -> bytes:
    """The event with this number: its size depends on it, so that frames of many lengths are torn."""
    return msgspec.msgpack.encode({"type": "Counted", "seq": seq, "filler": "x" * (seq * 7919 % 9001)})


def write_until_killed(folder: Path, acks: int, seed: int) -> None:
    """The child: open, begin, commit batches for ever, and acknowledge each in the pipe when it is durable."""
    rng = random.Random(seed)
    journal = Journal.open(folder, segment_bytes=SEGMENT_BYTES)
    journal.begin(
        run_id=RUN,
        context_hash=CONTEXT,
        capture=lambda: msgspec.msgpack.encode(journal.last_seq),
        wall_ns=time.time_ns(),
        boot_id=BOOT,
    )
    os.write(acks, ACK.pack(journal.last_seq))
    journal.start_preparing()
    while True:
        first = journal.last_seq + 1
        count = rng.choice((1, 1, 1, 2, 5, 40))
        batch = [event(seq) for seq in range(first, first + count)]
        journal.commit(batch, epoch=0, step=first, wall_ns=time.time_ns(), mono_ns=time.monotonic_ns())
        os.write(acks, ACK.pack(journal.last_seq))


def kill_once(folder: Path, rng: random.Random) -> int:
    """Start a writer, kill it after a drawn time, and return the last sequence number it acknowledged."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            write_until_killed(folder, writing, rng.randrange(1 << 30))
        finally:
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        first = pipe.read(ACK.size)  # the writer is up: the kill strikes while it writes
        time.sleep(rng.uniform(0.0, 0.03))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        rest = pipe.read()
    if not os.WIFSIGNALED(status):
        raise SystemExit(f"the writer ended by itself with status {status}")
    acks = first + rest
    return ACK.unpack_from(acks, len(acks) // ACK.size * ACK.size - ACK.size)[0]


def wrong_events(records: Iterable[object]) -> tuple[int, int]:
    """How many events there are, and how many of them are not the ones committed under their numbers."""
    count = wrong = 0
    for record in records:
        if isinstance(record, JournalEntry):
            count += 1
            wrong += record.seq != count or bytes(record.event) != event(count)
    return count, wrong


def kill_many(folder: Path, kills: int, seed: int) -> Counter[str]:
    """Kill so many writers, one journal after the other; the counts of what was found, summed up."""
    rng = random.Random(seed)
    counts: Counter[str] = Counter(kills=kills)
    for number, first in enumerate(range(0, kills, KILLS_PER_JOURNAL)):
        counts.update(kill_one_journal(folder / str(number), min(KILLS_PER_JOURNAL, kills - first), rng))
        counts["journals"] += 1
    return counts


def kill_one_journal(folder: Path, kills: int, rng: random.Random) -> Counter[str]:
    """Kill so many writers of one journal in turn."""
    counts: Counter[str] = Counter()
    checked = acked = 0
    for _ in range(kills):
        acked = max(acked, kill_once(folder, rng))
        with Journal.open(folder, segment_bytes=SEGMENT_BYTES) as journal:
            counts["lost"] += max(0, acked - journal.last_seq)
            counts["unacknowledged but whole"] += max(0, journal.last_seq - acked)
            captured = next(capture for capture in journal.captures() if capture.seq <= checked)
            fresh = [record for record in journal.records(captured.seq) if isinstance(record, JournalEntry)]
            counts["wrong"] += sum(bytes(entry.event) != event(entry.seq) for entry in fresh)
            counts["wrong"] += [entry.seq for entry in fresh] != list(range(captured.seq + 1, journal.last_seq + 1))
            checked = journal.last_seq
            recovery = journal.begin(
                run_id=RUN, context_hash=CONTEXT, capture=bytes, wall_ns=time.time_ns(), boot_id=BOOT
            )
            counts[f"tail {recovery.kind.value}"] += 1
    report = verify(folder)
    counts["not clean at the end"] = int(report.verdict is not Verdict.CLEAN)
    with Reader(folder) as reader:
        counts["events"], wrong = wrong_events(reader)
    counts["wrong"] += wrong
    counts["segments"] = report.segments
    return counts


def main() -> None:
    """Run it from the command line and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=int(os.environ.get("TOLARIA_SEED") or secrets.randbits(32)))
    parser.add_argument("--folder", type=Path, default=None, help="where the journal is made; must be empty")
    options = parser.parse_args()
    print(f"TOLARIA_SEED={options.seed}", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        counts = kill_many(options.folder or Path(scratch) / "journal", options.kills, options.seed)
    print(", ".join(f"{name}: {number}" for name, number in counts.items()))
    sys.exit(1 if counts["lost"] or counts["wrong"] or counts["not clean at the end"] else 0)


if __name__ == "__main__":
    main()
