"""The price of reading: verifying, decoding and folding, the steps out of the seals' columns, bytes a step, and memory.

    python -m tests.bench.journal_reading [--folder DIR] [--rounds 9] [--memory-mb 1000]

Two journals: frames of 64 events of 200 bytes, and steps as a run writes them, one a frame. Everything is read from the
page cache. Nothing is judged here.
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from journal import Files, Journal, Reader, Tabulation, read_columns, summarize, verify
from journal.frame import decode_events
from journal.packing import Packer
from journal.segment import SegmentView, Walk, list_segments
from tests.bench.machine import machine
from tolariad.core import messages as m
from tolariad.core.calc.steps.table import STEP_COLUMNS, step_row
from tolariad.core.messages.vocabulary import encode_event

EVENT = msgspec.msgpack.encode({"type": "StepReported", "wall": 1, "mono": 2, "filler": "x" * 160})
TABLE = Tabulation(STEP_COLUMNS, step_row)
FRAMES, STEPS, MILLION = 3000, 20_000, 1_000_000

Rates = dict[str, list[float]]  # events, or rows, a second in each round


def begun(folder: Path, **asked: object) -> Journal:
    """A new journal."""
    journal = Journal.open(folder, **asked)
    journal.begin(run_id=bytes(16), context_hash=bytes(32), capture=lambda: b"\xc0", wall_ns=0, boot_id=bytes(16))
    return journal


def steps(count: int) -> list[m.StepCompleted]:
    """Steps whose numbers do not repeat."""
    rng, wall, mono, made = random.Random(7), 1_790_000_000_000_000_000, 12_345_678_901, []
    for n in range(1, count + 1):
        wall, mono = wall + int(rng.gauss(1.1e6, 1e5)), mono + int(rng.gauss(1.1e6, 1e5))
        numbers = {"loss": rng.random(), "grad_norm": rng.random(), "lr": rng.random(), "rates": rng.getrandbits(63)}
        made.append(m.StepCompleted(step=n, epoch=n // 25, batch=n % 25, wall=wall, mono=mono, root=n, **numbers))
    return made


def make(folder: Path) -> None:
    """Both journals, the steps' one with closed segments that are packed."""
    # Filled to its end, as every closed segment is: the zeros of a half-empty one take a fifth of its reading.
    with begun(folder / "64", segment_bytes=50_000_000) as journal:
        for n in range(FRAMES):
            journal.commit([EVENT] * 64, epoch=1, step=n, wall_ns=n, mono_ns=n)
    with begun(folder / "steps", segment_bytes=30_000_000, tabulation=TABLE) as journal:
        for one in steps(STEPS):
            journal.commit([encode_event(one)], epoch=one.epoch, step=one.step, wall_ns=one.wall, mono_ns=one.mono)
    # As many steps a segment as one a frame makes in a segment of the usual length.
    with begun(folder / "columns", segment_bytes=4_000_000, tabulation=TABLE) as journal:
        row = encode_event(steps(1)[0])
        for at in range(0, MILLION, 4000):
            journal.commit([row] * 4000, epoch=1, step=at, wall_ns=at, mono_ns=at)


class _Filler(msgspec.Struct, gc=False):
    filler: str


_decode: Callable[[object], _Filler] = msgspec.msgpack.Decoder(_Filler).decode
_decode_step: Callable[[object], m.StepCompleted] = msgspec.msgpack.Decoder(m.StepCompleted).decode


def fold_fillers(folder: Path) -> int:
    """Decode every event and fold something of it."""
    total = 0
    with Reader(folder) as reader:
        for entry in reader:
            total += len(_decode(entry.event).filler)
    return total


def fold_steps(folder: Path) -> float:
    """Decode every step and fold its loss."""
    total = 0.0
    with Reader(folder) as reader:
        for entry in reader:
            total += _decode_step(entry.event).loss
    return total


def walk(folder: Path) -> int:
    """Checksums, places, order and chain of every frame, and that its events are as many as it says."""
    count = 0
    for name in list_segments(Files(), folder):
        view = SegmentView(Files(), name)
        count += sum(len(decode_events(frame) or ()) for frame in Walk(view) if frame.header.count)
        view.close()
    return count


def rates(folder: Path, rounds: int) -> Rates:
    """Events a second, by what is done with them."""
    works: dict[str, tuple[Callable[[], object], int]] = {
        "frames of 64: verify": (lambda: verify(folder / "64"), FRAMES * 64),
        "frames of 64: walk": (lambda: walk(folder / "64"), FRAMES * 64),
        "frames of 64: decode and fold": (lambda: fold_fillers(folder / "64"), FRAMES * 64),
        "one step a frame: verify": (lambda: verify(folder / "steps"), STEPS),
        "one step a frame: verify, columns compared": (lambda: verify(folder / "steps", tabulation=TABLE), STEPS),
        "one step a frame: decode and fold": (lambda: fold_steps(folder / "steps"), STEPS),
        "steps out of columns": (lambda: read_columns(folder / "columns", TABLE), MILLION),
    }
    found: Rates = {name: [] for name in works}
    for _ in range(rounds):
        for name, (work, events) in works.items():
            start = time.perf_counter()
            work()
            found[name].append(events / (time.perf_counter() - start))
    return found


def bytes_a_step(folder: Path) -> tuple[float, float]:
    """On disk as written, and packed."""
    raw = summarize(folder / "steps").bytes_a_step
    Packer(Files(), folder / "steps", pause_s=0).pack_all()
    packed = summarize(folder / "steps").bytes_a_step_packed
    return raw or 0.0, packed or 0.0


_CHILD = """
import re, sys
from pathlib import Path
import tests.bench.journal_reading as bench
from journal import verify
def peak():
    return int(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1])
before = peak()
if sys.argv[2] == "verify":
    assert verify(Path(sys.argv[1])).events
elif sys.argv[2] == "fold":
    assert bench.fold_fillers(Path(sys.argv[1]))
print(before / 1024, peak() / 1024)
"""


def memory(folder: Path, megabytes: int) -> dict[str, tuple[float, float]]:
    """Peak memory in MB of a process that reads a journal of so many: before it, and after."""
    with begun(folder / "large") as journal:
        for n in range(megabytes * 1_000_000 // (2048 * len(EVENT))):
            journal.commit([EVENT] * 2048, epoch=1, step=n, wall_ns=n, mono_ns=n)
    found = {}
    for what in ("verify", "fold"):
        command = [sys.executable, "-c", _CHILD, str(folder / "large"), what]
        said = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
        before, after = map(float, said.stdout.split())
        found[what] = before, after
    return found


def table(found: Rates, sizes: tuple[float, float], peak: dict[str, tuple[float, float]], megabytes: int) -> str:
    """The answer, for people."""
    rounds = len(next(iter(found.values())))
    lines = [machine(), f"{rounds} interleaved rounds, page cache warm; millions of events a second"]
    lines.append(f"{'':44}{'median':>10}{'range':>20}")
    for name, values in found.items():
        several = [value / 1e6 for value in values]
        lines.append(f"{name:44}{statistics.median(several):>10.3f}{f'{min(several):.3f} to {max(several):.3f}':>20}")
    seconds = MILLION / statistics.median(found["steps out of columns"])
    lines.append(f"a million steps out of columns: {seconds:.3f} s")
    lines.append(f"bytes a step: {sizes[0]:.0f} as written, {sizes[1]:.0f} packed, its row of the table included")
    for what, (before, after) in peak.items():
        lines.append(
            f"peak memory, {what} of {megabytes} MB: {after - before:.0f} MB above the interpreter's {before:.0f}"
        )
    return "\n".join(lines)


def main() -> None:
    """Run it from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path.cwd(), help="with room for the journals")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--memory-mb", type=int, default=1000, help="size of the journal that memory is measured on")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
        folder = Path(scratch)
        make(folder)
        found, peak = rates(folder, options.rounds), memory(folder, options.memory_mb)
        print(table(found, bytes_a_step(folder), peak, options.memory_mb))


if __name__ == "__main__":
    main()
