"""The price of the two tiers of rollback: 100 million parameters with AdamW's state, 1.2 GB, beside one memcpy of them.

The rounds of all of them are interleaved; medians are shown. The test runs in a trainer's environment: its C library
copies past the caches, as the one large memcpy does by itself. COMMIT is the copy and the digests of the copied bytes.
Nothing is judged here. Targets: the copy at most 1.2 times the memcpy, all three phases of the fast tier at most 1.8
times and under 500 ms.

python -m tests.bench.test_rollback_speed [--folder DIR] [--millions 100] [--rounds 5]
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.bench.machine import as_a_trainer, become_a_trainer, machine
from tests.bench.test_checkpoint_speed import take, timed, trained
from tolariad.core import messages as m
from tolariad.trainer.checkpoints.capture import capture
from tolariad.trainer.checkpoints.restore import check_fits, load, restore, taken_apart
from tolariad.trainer.checkpoints.save import Saver
from tolariad.trainer.checkpoints.snapshot import Position
from tolariad.trainer.rollback.confirm import Confirmation
from tolariad.trainer.rollback.snapshot_slots import Slots, growth_of, slot_bytes, verify

AT = Position(1, 1, 1)
MODULE = "tests.bench.test_rollback_speed"


def measured(folder: Path, millions: float, rounds: int) -> tuple[int, dict[str, list[float]]]:
    """Bytes, and seconds of each by name."""
    setup: Any = trained(millions)
    live = capture(setup, AT)
    size = slot_bytes(live, growth=growth_of(live))
    ring = m.Ring(2, -(-size // 4096) * 4096)
    descriptor = os.memfd_create("bench")
    os.posix_fallocate(descriptor, 0, 2 * ring.slot_bytes)
    slots = Slots(descriptor, ring)
    slots.copy(0, live)  # warm: the mapping's pages
    source, target = np.ones(live.nbytes, np.uint8), np.ones(live.nbytes, np.uint8)
    saver = Saver(setup, folder, "bench")
    _, _, written = take(saver, 1)
    found: dict[str, list[float]] = {}

    def note(name: str, seconds: float) -> None:
        found.setdefault(name, []).append(seconds)

    for _ in range(rounds):
        note("memcpy", timed(lambda: np.copyto(target, source)))
        begun = time.perf_counter()
        copied = slots.copy(1, capture(setup, AT))
        note("snapshot: training held", time.perf_counter() - begun)
        begun = time.perf_counter()
        table, digest = slots.finish(1, copied, (), "")
        note("snapshot: hashed beside training", time.perf_counter() - begun)
        begun = time.perf_counter()
        copy_alone = taken_apart(slots.read(1, digest).snapshot)
        note("fast: the copy alone", timed(lambda loaded=copy_alone: restore(setup, loaded)))
        begun = time.perf_counter()
        loaded = taken_apart(slots.read(1, digest).snapshot)
        check_fits(setup, loaded)
        prepared = time.perf_counter()
        confirmation = Confirmation()
        restore(setup, loaded, confirmation.copy)
        committed = time.perf_counter()
        differing = list(confirmation.differing(setup, AT, table))
        confirmed = time.perf_counter()
        assert not differing, differing
        note("fast: PREPARE", prepared - begun)
        note("fast: COMMIT", committed - prepared)
        note("fast: CONFIRM", confirmed - committed)
        note("fast: all phases", confirmed - begun)
        held = slots.read(1, digest)
        note("start from memory: verify", timed(lambda held=held: verify(held)))
        folder_of = folder / written.id
        begun = time.perf_counter()
        from_disk = load(folder_of, written.manifest)
        note("full: PREPARE (page cache, verified)", time.perf_counter() - begun)
        note("full: COMMIT", timed(lambda from_disk=from_disk: restore(setup, from_disk)))
    os.close(descriptor)
    return live.nbytes, found


def table_of(size: int, found: dict[str, list[float]]) -> str:
    """A line for each, with its ratio to the memcpy."""
    base = statistics.median(found["memcpy"])
    lines = [
        machine(),
        f"{size / 1e9:.2f} GB, {torch.get_num_threads()} torch threads",
        f"{'':38}{'ms':>10}{'x memcpy':>10}",
    ]
    for name, seconds in found.items():
        median = statistics.median(seconds)
        lines.append(f"{name:38}{median * 1e3:10.1f}{median / base:10.2f}")
    return "\n".join(lines)


def run(millions: float, rounds: int, folder: Path | None = None) -> str:
    """Measure in a folder of its own and give the table."""
    own = Path(tempfile.mkdtemp(dir=folder))
    try:
        return table_of(*measured(own / "checkpoints", millions, rounds))
    finally:
        shutil.rmtree(own)


def test_a_small_model_is_rolled_back(tmp_path: Path) -> None:
    """The bench itself: what a rollback reads of a set-up changes, and the long form runs seldom."""
    size, found = measured(tmp_path, 0.01, 1)

    assert size > 0
    assert {"fast: all phases", "full: COMMIT"} <= found.keys()


@pytest.mark.bench
def test_both_tiers_are_measured():
    """The table, with every line of it."""
    text = as_a_trainer(MODULE, "--millions", os.environ.get("TOLARIA_BENCH_MILLIONS", "100"))
    print(f"\n{text}")
    assert all(name in text for name in ("memcpy", "fast: all phases", "full: COMMIT", "start from memory"))


def main() -> None:
    """By hand."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--millions", type=float, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    become_a_trainer(MODULE)
    print(run(given.millions, given.rounds, given.folder))


if __name__ == "__main__":
    main()
