"""The table of budgets, as clients see it: one row a budget, from folded state.

It must not know: sockets, how a table is printed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from tolariad.core.checkpoints import retention_ask as retention
from tolariad.core.health.budgets import BUDGETS
from tolariad.core.health.histogram import Meter, with_one
from tolariad.core.plain import finite

if TYPE_CHECKING:
    from tolariad.core.health.budget_slice import Overruns
    from tolariad.core.health.budgets import Budget
    from tolariad.core.state import RunState


class BudgetRow(msgspec.Struct, frozen=True, kw_only=True):
    """One budget: what holds in this run, and what was measured, in `unit`.

    `count` measurements, `breaches` of them over `limit`; quantiles are None where there was none. `unmeasured`: why there
    can be none in this version.
    """

    name: str
    limit: float
    unit: str
    kind: str
    part_of: str | None
    setting: str | None
    unmeasured: str | None
    source: str
    count: int
    breaches: int
    p50: float | None
    p99: float | None
    worst: float | None


class BudgetTable(msgspec.Struct, frozen=True, kw_only=True):
    """Every budget there is. `act`: overruns may make the run careful; `open`: whose breakers are open at `mono`."""

    act: bool
    slow_boundaries: int
    open: tuple[str, ...]
    budgets: tuple[BudgetRow, ...]


def budget_table(state: RunState, mono_ns: int | None = None) -> BudgetTable:
    """The budgets as of this state. Without a time no breaker is known to be open: nobody waits for one to close."""
    overruns = state.overruns
    return BudgetTable(
        act=overruns.act,
        slow_boundaries=overruns.slow_boundaries,
        open=overruns.open_breakers(mono_ns) if mono_ns is not None else (),
        budgets=tuple(_row(overruns, budget, _meter(state, budget)) for budget in BUDGETS.values()),
    )


def _meter(state: RunState, budget: Budget) -> Meter:
    """What was measured; of the checkpoints' storage, what it holds now."""
    if budget.name != "checkpoint_storage":
        return state.overruns.meters.get(budget.name, Meter())
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
        unmeasured=budget.unmeasured or None,
        source=budget.source,
        count=meter.count,
        breaches=meter.breaches,
        p50=finite(meter.quantile(0.5)),
        p99=finite(meter.quantile(0.99)),
        worst=finite(meter.worst if meter.count else None),
    )
