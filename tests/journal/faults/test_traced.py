"""Fault class 6: system calls that fail under strace. It needs no compiler, and the kernel itself returns the error."""

from __future__ import annotations

import itertools
import random
import signal
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests.journal.faults.harness import PipedAcks, Plan, examine, told, torn_journal
from tests.journal.faults.writer import command
from tests.outside.programs import outside

WRITE_FAULTS = ("error=EIO", "error=ENOSPC", "error=EROFS", "error=EDQUOT", "retval=512", "signal=KILL")
CASES = [
    *itertools.product(("pwrite64",), WRITE_FAULTS, (1, 2, 3, 5, 8, 13)),
    *itertools.product(("fsync",), ("error=EIO", "error=ENOSPC", "signal=KILL"), (1, 2, 3, 5)),
    *itertools.product(("rename",), ("error=EIO", "error=ENOSPC", "signal=KILL"), (1, 2)),
    *itertools.product(("unlink",), ("error=EIO", "signal=KILL"), (1, 2)),
    ("flock", "error=EIO", 1),
    ("flock", "error=EAGAIN", 1),
]


def cannot_trace() -> str:
    """Return why strace cannot be used here, or an empty text."""
    tried = subprocess.run([outside("strace"), "-qq", "-o", "/dev/null", "true"], capture_output=True, text=True)
    return "" if tried.returncode == 0 else f"strace may not trace here: {tried.stderr.strip()[:100]}"


@pytest.fixture
def tracing():
    """Skip the test if processes cannot be traced."""
    reason = cannot_trace()
    if reason:
        pytest.skip(reason)


def inject(folder: Path, case: tuple[str, str, int], seed: str) -> Counter[str]:
    """Run one writer of a torn journal with one fault, then the next start."""
    call, fault, place = case
    acked = torn_journal(folder, Plan(seed="before", turns=6))
    tracer = [
        "strace",
        "-f",
        "-qq",
        "-o",
        "/dev/null",
        "-e",
        f"trace={call}",
        "-e",
        f"inject={call}:{fault}:when={place}",
    ]
    done = subprocess.run([*tracer, *command(folder, seed, 14, acked)], capture_output=True)
    counts: Counter[str] = Counter({"cases": 1, f"status {done.returncode}": 1})
    if done.returncode not in (0, 3, -signal.SIGKILL):
        print(f"class 6, {case}: {done.stderr.decode(errors='replace')}")
        counts["defects"] += 1
    plan = Plan(seed=seed)
    counts.update(examine(folder, plan, PipedAcks.heard(done.stdout, acked)))
    counts["refused"] += sum(number for what, number in counts.items() if what.startswith("refused:"))
    if counts["lost"] or counts["wrong"] or counts["refused"]:
        print(f"class 6, {case}, {seed}: {dict(counts)}")
    return counts


def run(cases: list[tuple[str, str, int]], folder: Path, seed: int) -> Counter[str]:
    rng = random.Random(seed)
    counts: Counter[str] = Counter()
    for number, case in enumerate(cases):
        counts.update(inject(folder / str(number), case, str(rng.random())))

    print(told("class 6", seed, counts))
    unwanted = ("lost", "wrong", "defects", "refused", "not clean at the end")
    assert [counts[what] for what in unwanted] == [0, 0, 0, 0, 0]
    assert counts["cases"] == len(cases)
    return counts


@pytest.mark.outside
def test_six_traced_faults_lose_nothing_acknowledged(tracing, tmp_path, seed):
    """Six drawn faults, one of each kind: acknowledged events lost 0, wrong events 0.

    All may hit only a spare's zeros, which the writer does not notice; a refused lock is always noticed.
    """
    rng = random.Random(seed)
    drawn = [rng.choice([case for case in CASES if case[1] == fault]) for fault in WRITE_FAULTS]
    counts = run([*drawn, ("flock", "error=EIO", 1)], tmp_path, seed)

    assert counts["status 3"] > 0


@pytest.mark.torture
def test_sixty_traced_faults_lose_nothing_acknowledged(tracing, tmp_path, seed):
    """All faults. Among so many, the writer notices some."""
    counts = run(CASES, tmp_path, seed)

    assert counts["status 3"] > 2  # more than the two locks that cannot be had
