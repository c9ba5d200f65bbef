"""Budgets: the events of what was measured, and of what exceeded its limit.

The measurements of one budget are a histogram. `core.calc.health.histogram` has the bounds of its buckets.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec
from msgspec.structs import asdict

from tolariad.core.calc.health.histogram import Bucket, Histogram
from tolariad.core.calc.units import Epoch, Seconds
from tolariad.core.messages.base import Event, Report, TrainerEffect

InUnit = Annotated[float, msgspec.Meta(description="in the budget's own unit")]


class BudgetHistogram(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of one budget: their number, how many exceeded the limit, the greatest, and the counts by bucket.

    `waits` and `clock`, of durations that exclude waiting: how long was waited, and the same durations by the clock.
    """

    budget: str
    count: int
    breaches: int
    worst: InUnit
    counts: tuple[Bucket, ...]
    waits: tuple[Bucket, ...] = ()
    clock: tuple[Bucket, ...] = ()


class RankTimes(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The times of one of several ranks, summed over `steps` timed steps: of its own work, and of waiting for others.

    `batch`: the samples of a step of this rank; 0 if they are not known.
    """

    rank: int
    pid: int
    steps: int
    compute_s: Seconds
    wait_s: Seconds
    batch: int = 0

    @property
    def step_s(self) -> float:
        """The mean time of a step, in seconds: compute and wait."""
        return (self.compute_s + self.wait_s) / max(1, self.steps)


class SlowestRank(msgspec.Struct, frozen=True):
    """The rank that the others wait for: in `share`, from 0 to 1, of a step."""

    rank: int
    share: float


def slowest_rank(ranks: Sequence[RankTimes]) -> SlowestRank | None:
    """Return the rank that computes longest in a step, and the share of a step that the others wait; None without."""
    timed = [one for one in ranks if one.steps]
    if len(timed) < 2:
        return None
    slow = max(timed, key=lambda one: one.compute_s / one.steps)
    shares = [one.wait_s / (one.steps * one.step_s) for one in timed if one is not slow and one.step_s > 0.0]
    return SlowestRank(slow.rank, sum(shares) / len(shares)) if shares else None


class BudgetsMeasured(Event, frozen=True, kw_only=True):
    """Measurements since the last such event.

    The trainer reports at the end of `epoch`; that boundary itself comes with the next report. The daemon reports
    journal and telemetry once a minute, with the current `epoch`. If several ranks train, rank 0 reports their times at
    the end of an epoch, and every half minute within one.
    """

    epoch: Epoch
    tallies: tuple[BudgetHistogram, ...]
    ranks: tuple[RankTimes, ...] = ()


class BudgetExceeded(Event, frozen=True, kw_only=True):
    """A budget was exceeded, `times` times since the last report. `value` is the worst measurement.

    It may degrade features (`budgets.act`); it never discards weights.
    """

    budget: str
    value: InUnit
    limit: InUnit
    unit: str
    times: int = 1


def tallies(histograms: Mapping[str, Histogram]) -> tuple[BudgetHistogram, ...]:
    """Return the histograms as they are reported, one for each budget."""
    return tuple(BudgetHistogram(budget=name, **asdict(one)) for name, one in histograms.items())


class MemoryPressed(Event, frozen=True, kw_only=True):
    """A part of the run holds more than its share of memory: `percent` of its pool, over `limit`.

    The trainer gives memory back that it would otherwise keep for later, until MemoryRelieved. `snapshots`: those that
    are given up with it.
    """

    budget: str
    percent: float
    limit: float
    snapshots: tuple[str, ...] = ()


class MemoryRelieved(Event, frozen=True, kw_only=True):
    """Every part of the run is within its share of memory again."""


class SetMemoryPressure(TrainerEffect, frozen=True, kw_only=True):
    """To the trainer: keep no memory for later while `pressed`, and of snapshots only that of these `slots`."""

    pressed: bool
    slots: tuple[int, ...] = ()


class BudgetsReport(Report, frozen=True, kw_only=True):
    """The trainer ends: what it measured since the last report that had measurements."""

    tallies: tuple[BudgetHistogram, ...]
