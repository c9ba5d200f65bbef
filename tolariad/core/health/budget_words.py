"""Budgets as they are spent: what was measured of them, and what was over its limit.

A tally is a histogram of many measurements under one name; its bounds are in `core.health.histogram`. It must not know: limits, clocks,
what follows from an overrun.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

import msgspec

from tolariad.core.base import Epoch, Event
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


EVENTS = (BudgetsMeasured, BudgetExceeded)
