"""The price of a decision: decided, stamped and folded. Printed for every kind, in nanoseconds."""

from __future__ import annotations

import statistics
import time

import pytest

from tests.core.reactions.recording import KEPT, Record, records
from tolariad.core import messages as m
from tolariad.core.rules.table.decide import decide

pytestmark = pytest.mark.bench

# A kind: its report or input, and the events that it led to in the recording.
KINDS = {
    "a step": ("StepReport", ["StepCompleted"]),
    "an epoch's end": ("EpochReport", ["EpochFinished"]),
    "an epoch's end with a checkpoint": ("EpochReport", ["EpochFinished", "CheckpointBegun"]),
    "a checkpoint written": ("CheckpointWrittenReport", ["CheckpointCommitted"]),
    "rolled back": ("RolledBackReport", ["RolledBack", "TrainingStarted"]),
    "a validation": ("ValidationReport", ["ValidationFinished"]),
    "the trainer at a boundary": ("HeldReport", ["RunPaused"]),
    "the trainer's death": ("TrainerGone", ["TrainerDied"]),
}
# Taken side by side when decisions became reactions (decision 0019): before, after.
THEN = {
    "a step": (9294, 7443),
    "an epoch's end": (18481, 13216),
    "an epoch's end with a checkpoint": (42396, 28476),
    "a checkpoint written": (57296, 43651),
    "rolled back": (88469, 44599),
    "a validation": (8815, 10049),
}
ROUNDS, LOOPS = 9, 200


def recorded() -> dict[str, list[Record]]:
    """The records of each kind."""
    held: dict[str, list[Record]] = {name: [] for name in KINDS}
    for record in records(KEPT):
        given = record.given.report if isinstance(record.given, m.ReportReceived) else record.given
        made = [type(event).__name__ for event in record.outcome.events]
        for name, (kind, events) in KINDS.items():
            if type(given).__name__ == kind and made == events:
                held[name].append(record)
    return held


def time_of(found: list[Record]) -> float:
    """Nanoseconds of one decision: the median over rounds of the mean over records."""
    rounds = []
    for _ in range(ROUNDS):
        begun = time.thread_time_ns()
        for one in found:
            # One after the other: rates are drawn ahead for one run at a time.
            for _ in range(LOOPS):
                decide(one.state, one.given, one.now)
        rounds.append((time.thread_time_ns() - begun) / LOOPS / len(found))
    return statistics.median(rounds)


def test_a_decision_of_every_kind_has_its_price(capsys):
    """Each kind is in the recording, so that each has a row."""
    held = recorded()
    with capsys.disabled():
        print(f"\n{'ns, decided, stamped and folded':<36}{'now':>10}   when it changed: before, after")
        for name, found in held.items():
            print(f"{name:<36}{time_of(found):>10.0f}   {THEN.get(name, '')}")
    assert all(held.values())
