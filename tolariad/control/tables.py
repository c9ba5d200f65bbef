"""The tables that clients get: budgets, with a row for each that this version measures; learning rates; seeds by slot.

Limits, rates and orders come from folded state, measurements from histograms.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from tolariad.control.replies import SeedStatus
from tolariad.control.reply_tables import (
    BudgetRow,
    BudgetTable,
    Quantiles,
    RateGroup,
    RateTable,
    SeedRow,
    SeedTable,
)
from tolariad.core import messages as m
from tolariad.core import queries as q
from tolariad.core.calc.health.budgets import BUDGETS
from tolariad.core.calc.health.histogram import Bucket, Histogram, quantile, with_one
from tolariad.core.calc.learning_rate.group import rate_of
from tolariad.core.calc.seeds.stages import PLANTED, Stage
from tolariad.core.calc.text.plain import finite, rfc3339

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tolariad.core import state as st
    from tolariad.core.calc.health.budgets import Budget
    from tolariad.core.state.run_state import RunState


def budget_table(
    state: RunState, histograms: Mapping[str, Histogram], *, mono_ns: int | None = None, since: str | None = None
) -> BudgetTable:
    """Return the budgets as of this state. Without `mono_ns` the time is unknown, so `open` is empty."""
    overruns = state.overruns
    return BudgetTable(
        act=overruns.act,
        slow_boundaries=overruns.slow_boundaries,
        open=overruns.open_breakers(mono_ns) if mono_ns is not None else (),
        since=since,
        budgets=tuple(
            _budget_row(overruns, budget, _histogram(state, histograms, budget))
            for budget in BUDGETS.values()
            if not budget.unmeasured
        ),
    )


def _histogram(state: RunState, histograms: Mapping[str, Histogram], budget: Budget) -> Histogram:
    """Return the measurements of a budget. For the checkpoints' storage, that is what it holds now."""
    if budget.name != "checkpoint_storage":
        return histograms.get(budget.name, Histogram())
    held = q.used_bytes(state.checkpoints) / 1e9
    return with_one(Histogram(), held, state.overruns.limit_of(budget.name)) if held else Histogram()


def _budget_row(overruns: st.BudgetState, budget: Budget, histogram: Histogram) -> BudgetRow:
    return BudgetRow.of(
        budget,
        histogram,
        limit=overruns.limit_of(budget.name),
        part_of=budget.part_of or None,
        setting=budget.setting or None,
        compares=budget.compares or None,
        p50=finite(histogram.quantile(0.5)),
        p95=finite(histogram.quantile(0.95)),
        p99=finite(histogram.quantile(0.99)),
        worst=finite(histogram.worst if histogram.count else None),
        clock=_quantiles(histogram.clock),
        waited=_quantiles(histogram.waits),
    )


def _quantiles(counts: tuple[Bucket, ...]) -> Quantiles | None:
    p50, p95, p99 = (finite(quantile(counts, share)) for share in (0.5, 0.95, 0.99))
    return None if p50 is None or p95 is None or p99 is None else Quantiles(p50=p50, p95=p95, p99=p99)


def rate_table(state: RunState) -> RateTable:
    """Return the rates as of this state."""
    step = state.progress.step
    return RateTable(
        step=step,
        conservative=state.stability.conservative,
        violations=state.stability.total,
        groups=tuple(_rate_group(state, index, step) for index in range(len(state.rates.groups))),
    )


def _rate_group(state: RunState, index: int, step: int) -> RateGroup:
    rates, waiting = state.rates, state.boundary.of_kind(m.SetRate)
    group = rates.groups[index]
    change = rates.changes.get(group.name)
    now = rate_of(group, step) if step else None
    if change is not None and step and change.step == step + 1:
        now = change.before
    return RateGroup(
        name=group.name,
        policy=group.policy_name,
        base=group.schedule.base_lr,
        now=now,
        next=rate_of(group, step + 1),
        waiting=sum(order.group == group.name for _, order in waiting),
        frozen=group.name in state.seeds.frozen_groups,
        curve_steps=group.schedule.total_steps,
        changed_step=change.step if change else None,
        changed_rate=change.rate if change else None,
        changed_by=change.by if change else None,
        changed_why=change.reason if change else None,
        changed_time=rfc3339(change.wall) if change else None,
    )


def seed_table(state: RunState) -> SeedTable:
    """Return slots and seeds as of this state."""
    return SeedTable(
        step=state.progress.step,
        conservative=state.stability.conservative,
        germinations=state.seeds.germinations,
        blueprints=state.seeds.blueprints,
        slots=tuple(_seed_row(state, one.name, one.layer_depth) for one in state.seeds.slots),
    )


def _seed_row(state: RunState, slot: str, layer_depth: int) -> SeedRow:
    seed, step, measure = state.seeds.seed(slot), state.progress.step, state.seeds.measures.get(slot)
    waiting, entry = q.waiting_move(state, slot), state.quarantine.of_seed(slot)
    row = SeedRow(
        slot=slot,
        layer_depth=layer_depth,
        stage=seed.stage.name,
        alpha=seed.alpha_after(step),
        waiting=waiting.stage.name if waiting else None,
        quarantine=entry.name if entry else None,
    )
    if seed.stage is Stage.DORMANT:
        return row
    is_there = seed.stage in PLANTED
    return replace(
        row,
        number=seed.germination,
        born_step=seed.born_step,
        blueprint=seed.blueprint,
        parameters=seed.parameters_added if is_there else None,
        steps=max(0, step - seed.since_step + 1),
        epochs=max(0, state.progress.epoch_finished - seed.born_epochs),
        gradient_norm=_measured(measure.gradient_norm) if measure else None,
        learning_rate=_measured(measure.learning_rate) if measure else None,
        dropped=measure.dropped if measure else None,
        learning=seed.learning.value if is_there else None,
        free_after=None if is_there else q.embargo_ends(state, seed),
        moved_step=seed.since_step,
        moved_by=seed.by or None,
        moved_why=seed.reason or None,
    )


def _measured(value: float) -> float | None:
    """Return a number that was measured, or None."""
    return None if value < 0 else finite(value)


def growing(state: RunState) -> tuple[SeedStatus, ...]:
    """Return the slots that are not free, with their stages."""
    found, step = state.seeds, state.progress.step
    if not found.seeds:
        return ()
    seeds = (found.seed(one.name) for one in found.slots if one.name in found.seeds)
    return tuple(SeedStatus(slot=one.slot, stage=one.stage.name, alpha=one.alpha_after(step)) for one in seeds)
