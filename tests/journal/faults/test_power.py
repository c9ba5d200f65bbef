"""Fault class 9: power cuts of a real ext4, which first recovers its own journal.

The file system is in a file. A writer is killed at a drawn moment, and the file is copied at that moment. Data that was
only in the page cache of the mounted file system is not in the copy, as after a power cut. A copy does not show a disk
that loses acknowledged flushes; the simulator does.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.conftest import MEMORY
from tests.journal.faults.harness import Plan, examine, told
from tests.journal.faults.mounts import MEBIBYTE, Writer, cannot_mount, ext4_image, mounted

CONTROL = "never-synced"


def cut(empty: Path, folder: Path, rng: random.Random) -> Counter[str]:
    """Run one writer on a fresh copy of an empty file system, cut the power once, and start on the result."""
    image, after = folder / "image", folder / "after"
    shutil.copy(empty, image)
    plan = Plan(seed=str(rng.random()), turns=100_000, segment_bytes=20 * 4096, background=rng.random() < 0.5)
    # No periodic commit: only synced data is on the disk.
    with mounted(image, folder / "before", "commit=600") as there:
        (there / CONTROL).write_bytes(b"only in memory")
        writer = Writer(there / "journal", plan)
        writer.at_work()
        time.sleep(rng.uniform(0.0, 0.15))
        os.kill(writer.child, signal.SIGKILL)
        shutil.copy(image, after)
        status, acks = writer.end()
    counts: Counter[str] = Counter({"cuts": 1, f"writer's status {status}": 1, "acknowledged": acks.acked})
    with mounted(after, folder / "then") as there:
        control = there / CONTROL
        counts["unsynced files gone"] += not control.exists() or control.stat().st_size == 0
        counts.update(examine(there / "journal", plan, acks))
    counts["refused"] += sum(number for what, number in counts.items() if what.startswith("refused:"))
    return counts


def run(cuts: int, seed: int) -> None:
    reason = cannot_mount()
    if reason:
        pytest.skip(reason)
    rng = random.Random(seed)
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as scratch:
        empty = ext4_image(Path(scratch) / "empty", 24 * MEBIBYTE)
        for number in range(cuts):
            folder = Path(scratch) / str(number)
            folder.mkdir()
            found = cut(empty, folder, rng)
            if found["lost"] or found["wrong"] or found["refused"]:
                print(f"class 9, cut {number}: {dict(found)}")
            counts.update(found)
            shutil.rmtree(folder)

    print(told("class 9", seed, counts))
    assert [counts[what] for what in ("lost", "wrong", "refused", "not clean at the end")] == [0, 0, 0, 0]
    # The cuts were real: unsynced data was gone afterwards, and acknowledged events were there.
    assert counts["unsynced files gone"] > 0
    assert counts["acknowledged"] > 0


def test_three_power_cuts_of_an_ext4_lose_nothing_acknowledged(seed):
    """Three cuts at drawn moments: lost 0, wrong 0."""
    run(3, seed)


@pytest.mark.torture
def test_two_hundred_power_cuts_of_an_ext4_lose_nothing_acknowledged(seed):
    """The same with 200 cuts."""
    run(200, seed)
