"""Time decisions of every kind, once decided, stamped and folded, with the `tolariad` that the path finds. Prints JSON.

Run by test_decision_times.py, for the present tree and for an older one beside it.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from tests.core.reactions.recording import Record, records
from tolariad.core import decide as decide_module
from tolariad.core import decision as decision_module
from tolariad.core.inputs import ReportReceived
from tolariad.core.state import fold

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
ROUNDS, LOOPS = 9, 200


def main() -> None:
    """Nanoseconds of each kind: the median over rounds of the mean over records."""
    held: dict[str, list[Record]] = {name: [] for name in KINDS}
    for record in records(Path(sys.argv[1])):
        given = record.given.report if isinstance(record.given, ReportReceived) else record.given
        made = [type(event).__name__ for event in record.outcome.events]
        for name, (kind, events) in KINDS.items():
            if type(given).__name__ == kind and made == events:
                held[name].append(record)
    function = whole()
    print(msgspec.json.encode({name: time_of(function, found) for name, found in held.items() if found}).decode())


def whole() -> Callable[[Record], Any]:
    """Decide, stamp and fold, as the recorder of this version does it."""
    decide, stamped = decide_module.decide, getattr(decision_module, "stamped", None)
    if stamped is None:
        return lambda one: decide(one.state, one.given, one.now).state

    def old(one: Record) -> Any:
        return fold(one.state, stamped(decide(one.state, one.given, one.now), one.state.seq, one.now).events)

    return old


def time_of(function: Callable[[Record], Any], found: list[Record]) -> float:
    """Nanoseconds of one decision."""
    rounds = []
    for _ in range(ROUNDS):
        begun = time.thread_time_ns()
        for one in found:
            # One after the other: rates are drawn ahead for one run at a time.
            for _ in range(LOOPS):
                function(one)
        rounds.append((time.thread_time_ns() - begun) / LOOPS / len(found))
    return statistics.median(rounds)


if __name__ == "__main__":
    main()
