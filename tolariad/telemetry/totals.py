"""Counters, durations and spent time of a run for Prometheus, added up from its events. Pure.

Promises: the same events give the same totals. Totals of the events before a start and of those after it add up to the
totals of all: so a counter goes on over restarts, and never starts again at zero.
"""

from __future__ import annotations

import bisect
from collections import Counter
from typing import Final

import msgspec

from tolariad.core import messages as m
from tolariad.core.calc.health.spending import SPENT

# Upper ends of the buckets in seconds, around the budgets: 18 ms for a boundary, 0.5 s and 12 s for a rollback.
EPOCH_S: Final = (0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 86400.0)
CHECKPOINT_S: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
ROLLBACK_S: Final = (0.018, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 12.0, 30.0, 60.0)
BOUNDS: Final = {"epoch": EPOCH_S, "checkpoint": CHECKPOINT_S, "rollback": ROLLBACK_S}
_COUNTED: Final[dict[type[m.Event], str]] = {
    m.StepCompleted: "steps_completed",
    m.StepSkipped: "steps_skipped",
    m.EpochFinished: "epochs_completed",
    m.ValidationFinished: "validations_completed",
    m.CheckpointCommitted: "checkpoints_committed",
    m.CheckpointAborted: "checkpoints_aborted",
    m.CheckpointRejected: "checkpoints_rejected",
    m.RollbackBegun: "rollbacks_initiated",
    m.RolledBack: "rollbacks_succeeded",
    m.RollbackAborted: "rollbacks_aborted",
    m.LrViolationDetected: "lr_violations",
    m.InstabilityDetected: "findings",
    m.BudgetExceeded: "budget_overruns",
    m.ConservativeModeEntered: "conservative_mode_entered",
    m.DaemonStarted: "daemon_starts",
    m.TrainerStarted: "trainer_starts",
    m.TrainerDied: "trainer_deaths",
    m.CommandRefused: "commands_refused",
}
COUNTERS: Final = tuple(_COUNTED.values())
SPENT_ON: Final = tuple(dict.fromkeys(SPENT.values()))


class Durations(msgspec.Struct, frozen=True):
    """How many values lie in each bucket (one more than the bounds: the rest), and their sum in seconds."""

    counts: tuple[int, ...]
    sum_s: float = 0.0


class Totals(msgspec.Struct, frozen=True):
    """Counters by name, durations by name, and how many ns the run has spent on what while a recorder ran."""

    counters: dict[str, int] = {}
    durations: dict[str, Durations] = {}
    spent_ns: dict[str, int] = {}

    def plus(self, other: Totals) -> Totals:
        """Return the totals of both parts of a run."""
        counters = {name: self.counters.get(name, 0) + other.counters.get(name, 0) for name in COUNTERS}
        durations = {}
        for name, bounds in BOUNDS.items():
            none = Durations((0,) * (len(bounds) + 1))
            one, two = self.durations.get(name, none), other.durations.get(name, none)
            counts = tuple(a + b for a, b in zip(one.counts, two.counts, strict=True))
            durations[name] = Durations(counts, one.sum_s + two.sum_s)
        spent = {what: self.spent_ns.get(what, 0) + other.spent_ns.get(what, 0) for what in SPENT_ON}
        return Totals(counters, durations, spent)


class Adding:
    """Adds up events, one after the other. One thread adds; any thread may read `now`."""

    def __init__(self) -> None:
        self._counters: Counter[str] = Counter()
        self._counts = {name: [0] * (len(bounds) + 1) for name, bounds in BOUNDS.items()}
        self._sums = dict.fromkeys(BOUNDS, 0.0)
        # What the run is at, since when (of the clock that never goes back), and what was spent before that. Replaced
        # as a whole: another thread reads it.
        self._spending: tuple[str, int, dict[str, int]] = ("", 0, dict.fromkeys(SPENT_ON, 0))
        self._last = 0

    def add(self, event: m.Event) -> None:
        """Add an event; it costs a look into a table if it says nothing here."""
        name = _COUNTED.get(type(event))
        if name is not None:
            self._counters[name] += 1
        match event:
            case m.StepCompleted(mono=mono):
                self._last = mono
                return
            case m.EpochFinished(seconds=seconds):
                self._measure("epoch", seconds)
            case m.CheckpointCommitted(seconds=seconds):
                self._measure("checkpoint", seconds)
            case m.RolledBack(spans=spans, commit_s=commit_s, confirm_s=confirm_s):
                # All of it is in this event: a rollback may begin in one life of the daemon and end in the next.
                self._measure("rollback", spans.load + spans.coordination + commit_s + confirm_s)
        self._spend(event)

    @property
    def now(self) -> Totals:
        """Return the totals so far."""
        durations = {name: Durations(tuple(counts), self._sums[name]) for name, counts in self._counts.items()}
        return Totals(dict(self._counters), durations, self._spent(*self._spending))

    def _spend(self, event: m.Event) -> None:
        what = SPENT.get(type(event).__name__)
        if not isinstance(event, m.DaemonStarted):
            # Before a start no recorder ran: what was before it ends with its last event.
            self._last = event.mono
        if what is not None:
            self._spending = what, event.mono, self._spent(*self._spending)
        self._last = event.mono

    def _spent(self, on: str, since: int, before: dict[str, int]) -> dict[str, int]:
        return before | ({on: before[on] + max(0, self._last - since)} if on else {})

    def _measure(self, name: str, seconds: float) -> None:
        self._counts[name][bisect.bisect_left(BOUNDS[name], seconds)] += 1
        self._sums[name] += seconds
