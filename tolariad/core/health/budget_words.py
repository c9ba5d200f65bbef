"""Budgets as they are spent: what was measured of them, and what was over its limit.

A tally is a histogram of many measurements under one name; its bounds are in `core.health.histogram`. It must not know: limits, clocks,
what follows from an overrun.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

import msgspec

from tolariad.core.base import Effect, Epoch, Event, Message
from tolariad.core.health.histogram import Bin, Meter

InUnit = Annotated[float, msgspec.Meta(description="in the budget's own unit")]


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of one budget: how many, how many of them over the limit, the greatest, and their number by bucket, ascending."""

    budget: str
    count: int
    breaches: int
    worst: InUnit
    counts: tuple[Bin, ...]


class BudgetsMeasured(Event, frozen=True, kw_only=True):
    """What was measured since it was told last: by the trainer at the end of `epoch`, the boundary behind which comes with the
    next; of journal and telemetry by the daemon, once a minute, in `epoch`.
    """

    EMITTED_BY: ClassVar[str] = "trainer"

    epoch: Epoch
    tallies: tuple[Tally, ...]


class BudgetExceeded(Event, frozen=True, kw_only=True):
    """Something took longer than its budget, `times` over of late; `value` is the worst of them.

    It may degrade features (`budgets.act`); it never discards weights.
    """

    budget: str
    value: InUnit
    limit: InUnit
    unit: str
    times: int = 1


def tallies(meters: Mapping[str, Meter]) -> tuple[Tally, ...]:
    """The same as it is told, a tally a budget."""
    return tuple(
        Tally(budget=name, count=one.count, breaches=one.breaches, worst=one.worst, counts=one.counts)
        for name, one in meters.items()
    )


class MemoryPressed(Event, frozen=True, kw_only=True):
    """A part of the run holds more than its share of memory: `percent` of its pool, over `limit`.

    The trainer gives memory back that it would otherwise keep for later, until MemoryRelieved.
    """

    budget: str
    percent: float
    limit: float


class MemoryRelieved(Event, frozen=True, kw_only=True):
    """Every part of the run is within its share of memory again."""


class SetMemoryPressure(Effect, frozen=True, kw_only=True):
    """To the trainer: keep no memory for later while `pressed`."""

    pressed: bool


class BudgetsReport(Message, frozen=True, kw_only=True):
    """The trainer ends: what it measured since the last report that had tallies."""

    tallies: tuple[Tally, ...]


EVENTS = (BudgetsMeasured, BudgetExceeded, MemoryPressed, MemoryRelieved)
