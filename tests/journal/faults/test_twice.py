"""Fault class 11: a second fault while the first is handled: in recovery, repair, rotation and the move after a
failure.

A call fails, and the machine dies some calls later, while the writer moves to the next segment, seals, or makes a
spare. It starts again and dies at every call of the recovery or the repair. Then it starts without faults.
"""

from __future__ import annotations

import errno
import itertools
import random
from collections import Counter

import msgspec
import pytest

from journal import JournalFailed, JournalFull, repair
from tests.journal.faults.harness import Acks, Plan, begin_journal, examine, judge_records, open_journal, told, write
from tests.journal.faults.simulator import FOLDER, SECTOR, PowerCut, SimulatedDisk

PLAN = Plan(seed="twice", turns=16, segment_bytes=12 * SECTOR, alignment=SECTOR, longest=700, patience=2)
MANNERS = ("raises", "short", "arrives")


class Twice(msgspec.Struct, frozen=True):
    """One case.

    It has the first failure, the number of calls until the power cut, and the call of the next start at which it dies
    again.
    """

    fails_at: int
    manner: str
    error: int
    fails_for: int
    cut_after: int
    cut_again: int
    repairs: bool


def all_cases() -> list[Twice]:
    """Return all cases: every write of a short life fails in every way, then power cuts one to nine calls later."""
    return [
        Twice(fails_at, manner, error, fails_for, cut_after, cut_again, (fails_at + cut_again) % 3 == 0)
        for fails_at, (manner, error), fails_for, cut_after, cut_again in itertools.product(
            range(3, 33, 2),
            zip(MANNERS, (errno.EIO, errno.EIO, errno.ENOSPC), strict=True),
            (1, 2),
            range(1, 10, 2),
            range(1, 9),
        )
    ]


def live(disk: SimulatedDisk, acks: Acks, counts: Counter[str], *, repairs: bool) -> None:
    """Run one life to any end, after a repair if the case says so."""
    journal = None
    try:
        if repairs and any(path.suffix == ".wal" for path in disk.images):
            repair(FOLDER, files=disk)
        journal = open_journal(FOLDER, PLAN, disk)
        found = judge_records(journal.records(), counts, longest=PLAN.longest)
        counts["lost"] += max(0, acks.acked - found)
        counts["wrong"] += found not in (acks.acked, acks.tried)
        acks.trying(found)
        acks.acknowledged(found)
        begin_journal(journal)
        write(journal, PLAN, acks)
        journal.close()
        counts["outlived both"] += 1
    except PowerCut:
        counts["died"] += 1
    except JournalFailed:
        counts["froze"] += 1
    except JournalFull:
        # A mark, or the first segment of all: what commits batches has the patience to outlast the fault.
        counts["had no space"] += 1
    except OSError:
        counts["could not start"] += 1
    finally:
        if journal is not None:
            journal._closed = "over"


def run_case(case: Twice, number: int) -> Counter[str]:
    """Run fault, death, death again, and a start without faults."""
    counts: Counter[str] = Counter(lost=0, wrong=0, cases=1)
    disk, acks = SimulatedDisk(random.Random(number), "failing"), Acks()
    disk.begin_life(faults=False)
    disk.fails_from, disk.fails_for, disk.manner, disk.error = case.fails_at, case.fails_for, case.manner, case.error
    disk.cut_at = case.fails_at + case.cut_after
    live(disk, acks, counts, repairs=False)
    disk.end_life()
    disk.begin_life(faults=False)
    disk.cut_at = case.cut_again
    live(disk, acks, counts, repairs=case.repairs)
    disk.end_life()
    disk.begin_life(faults=False)
    counts.update(examine(FOLDER, PLAN, acks, disk))
    counts["refused"] += sum(found for what, found in counts.items() if what.startswith("refused:"))
    if counts["lost"] or counts["wrong"] or counts["refused"]:
        print(f"class 11, {case}, number {number}: {dict(counts)}")
    return counts


def run(cases: list[Twice], seed: int) -> None:
    counts: Counter[str] = Counter()
    for number, case in enumerate(cases, start=seed):
        counts.update(run_case(case, number))

    print(told("class 11", seed, counts))
    assert [counts[what] for what in ("lost", "wrong", "refused", "not clean at the end")] == [0, 0, 0, 0]
    for what in ("died", "froze", "torn start", "unclean start"):
        assert counts[what] > 0, what


def test_a_fault_inside_the_answer_to_a_fault_loses_nothing_acknowledged(seed):
    """400 drawn cases: lost 0, wrong 0, and every journal opens in the end."""
    run(random.Random(seed).sample(all_cases(), 400), seed)


@pytest.mark.torture
def test_every_fault_inside_the_answer_to_a_fault_loses_nothing_acknowledged(seed):
    """All of them."""
    run(all_cases(), seed)
