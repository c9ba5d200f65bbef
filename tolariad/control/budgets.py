"""The table of budgets that clients get: limits from folded state, measurements from histograms.

It has one row for each budget that this version measures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from tolariad.core.checkpoints import ask as retention
from tolariad.core.health.budgets import BUDGETS
from tolariad.core.health.histogram import Meter, with_one
from tolariad.core.plain import finite

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tolariad.core.health.budget_slice import Overruns
    from tolariad.core.health.budgets import Budget
    from tolariad.core.state import RunState


class BudgetRow(msgspec.Struct, frozen=True, kw_only=True):
    """One budget: its limit in this run and its measurements, in `unit`.

    `breaches` of the `count` measurements were over `limit`. Quantiles are None if nothing was measured.
    """

    name: str
    limit: float
    unit: str
    kind: str
    part_of: str | None
    setting: str | None
    source: str
    count: int
    breaches: int
    p50: float | None
    p99: float | None
    worst: float | None


class BudgetTable(msgspec.Struct, frozen=True, kw_only=True):
    """All budgets. `act`: overruns may lead to conservative mode. `open`: the budgets whose breakers are open.

    `since`: the start of the measurements. A live daemon has those since its start; a journal has all (None).
    """

    act: bool
    since: str | None
    slow_boundaries: int
    open: tuple[str, ...]
    budgets: tuple[BudgetRow, ...]


def budget_table(
    state: RunState, meters: Mapping[str, Meter], *, mono_ns: int | None = None, since: str | None = None
) -> BudgetTable:
    """Return the budgets as of this state. Without `mono_ns` the time is unknown, so `open` is empty."""
    overruns = state.overruns
    return BudgetTable(
        act=overruns.act,
        slow_boundaries=overruns.slow_boundaries,
        open=overruns.open_breakers(mono_ns) if mono_ns is not None else (),
        since=since,
        budgets=tuple(
            _row(overruns, budget, _meter(state, meters, budget))
            for budget in BUDGETS.values()
            if not budget.unmeasured
        ),
    )


def _meter(state: RunState, meters: Mapping[str, Meter], budget: Budget) -> Meter:
    """Return the measurements of a budget. For the checkpoints' storage, that is what it holds now."""
    if budget.name != "checkpoint_storage":
        return meters.get(budget.name, Meter())
    held = retention.used(state.checkpoints) / 1e9
    return with_one(Meter(), held, state.overruns.limit_of(budget.name)) if held else Meter()


def _row(overruns: Overruns, budget: Budget, meter: Meter) -> BudgetRow:
    return BudgetRow(
        name=budget.name,
        limit=overruns.limit_of(budget.name),
        unit=budget.unit,
        kind=budget.kind,
        part_of=budget.part_of or None,
        setting=budget.setting or None,
        source=budget.source,
        count=meter.count,
        breaches=meter.breaches,
        p50=finite(meter.quantile(0.5)),
        p99=finite(meter.quantile(0.99)),
        worst=finite(meter.worst if meter.count else None),
    )
