"""Fault class 7: a crash behind and inside every recorded system call of start, append, rotation, repair and recovery."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from journal import repair
from tests.journal.faults.harness import (
    Acks,
    Plan,
    begin_journal,
    examine,
    open_journal,
    told,
    torn_journal,
    write,
)
from tests.journal.faults.recorded import Op, RecordedAcks, Recorder, crash_states
from tests.journal.make import MemoryFiles

PLAN = Plan(seed="recorded", turns=14)


def live(folder: Path, acks: Acks, plan: Plan) -> None:
    """One orderly life of a writer."""
    with open_journal(folder, plan) as journal:
        begin_journal(journal)
        write(journal, plan, acks)


def a_new_journal(folder: Path, recorder: Recorder, plan: Plan) -> None:
    """Start, append, rotate, close."""
    live(folder, RecordedAcks(recorder), plan)


def a_torn_journal(folder: Path, recorder: Recorder, plan: Plan) -> None:
    """Recovery sets a torn tail aside, then appends and rotates."""
    live(folder, RecordedAcks(recorder, torn_before(folder)), plan)


def torn_before(folder: Path) -> int:
    """The number that the prepared journal ends with."""
    return int(folder.with_suffix(".acked").read_text(encoding="ascii"))


def a_repair(folder: Path, recorder: Recorder, plan: Plan) -> None:
    """Repair cuts the same tail; a writer goes on behind it."""
    repair(folder)
    live(folder, RecordedAcks(recorder, torn_before(folder)), plan)


SCENARIOS: dict[str, Callable[[Path, Recorder, Plan], None]] = {
    "new": a_new_journal,
    "torn": a_torn_journal,
    "repair": a_repair,
}


def record(name: str, folder: Path, plan: Plan) -> tuple[list[Op], dict[Path, bytes], int]:
    """The calls of one scenario on real files, and the files and the number it began with."""
    acked = 0
    if name != "new":
        acked = torn_journal(folder, Plan(seed="before", turns=6))
        folder.with_suffix(".acked").write_text(str(acked), encoding="ascii")
    images = {path: path.read_bytes() for path in folder.glob("*")} if folder.is_dir() else {}
    with Recorder(folder.parent) as recorder:
        SCENARIOS[name](folder, recorder, plan)
    shutil.rmtree(folder)
    return recorder.ops, images, acked


def examine_crashes(name: str, folder: Path, plan: Plan, most: int, rng: random.Random) -> Counter[str]:
    """Examine the crash states of one scenario, at most so many of them, drawn."""
    ops, images, acked = record(name, folder, plan)
    states = list(crash_states(ops, images, acked))
    counts: Counter[str] = Counter({"calls": sum(op.kind not in ("trying", "acknowledged") for op in ops)})
    counts["O_DSYNC writes"] = sum(op.kind == "write" and op.synced for op in ops)
    counts["other writes"] = sum(op.kind == "write" and not op.synced for op in ops)
    for what, image, acks in rng.sample(states, min(most, len(states))):
        found = examine(folder, plan, acks, MemoryFiles(image))
        counts["states"] += 1
        refused = sum(number for outcome, number in found.items() if outcome.startswith("refused"))
        if found["lost"] or found["wrong"] or found["not clean at the end"] or refused:
            print(f"class 7, {name}, {what}: {dict(found)}")
            counts["refused"] += refused
        counts.update(found)
    return counts


@pytest.mark.parametrize("name", list(SCENARIOS))
def test_a_crash_at_any_call_loses_nothing_acknowledged(name, quick_path, seed):
    """150 drawn crash states of each scenario: every one opens, lost 0, wrong 0."""
    counts = examine_crashes(name, quick_path / "journal", PLAN, 150, random.Random(seed))

    print(told(f"class 7, {name}", seed, counts))
    assert (counts["lost"], counts["wrong"], counts["refused"], counts["not clean at the end"]) == (0, 0, 0, 0)
    assert counts["states"] == 150
    assert counts["O_DSYNC writes"] > 10


@pytest.mark.torture
def test_every_crash_state_of_many_recordings_loses_nothing_acknowledged(quick_path, seed):
    """All crash states of several recordings of each scenario."""
    counts: Counter[str] = Counter()
    for name in SCENARIOS:
        for number in range(4):
            plan = Plan(seed=f"{seed}-{number}", turns=20)
            folder = quick_path / f"{name}-{number}"
            counts.update(examine_crashes(name, folder, plan, 1 << 30, random.Random(seed)))

    print(told("class 7, all", seed, counts))
    assert (counts["lost"], counts["wrong"], counts["refused"], counts["not clean at the end"]) == (0, 0, 0, 0)
    assert counts["states"] > 3000
