"""The tables that clients get: budgets, with a row for each that this version measures; learning rates; seeds by slot.

Limits, rates and orders come from folded state, measurements from histograms.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from tolariad.core.base import Copying
from tolariad.core.checkpoints import ask as retention
from tolariad.core.health.budgets import BUDGETS, Kind, Unit
from tolariad.core.health.histogram import Bucket, Histogram, quantile, with_one
from tolariad.core.learning_rate.group import rate_of
from tolariad.core.rates.words import SetRate
from tolariad.core.seeds import ask as seeds
from tolariad.core.seeds.stages import PLANTED, Stage
from tolariad.core.text.plain import finite, rfc3339

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tolariad.core.health.budget_slice import BudgetState
    from tolariad.core.health.budgets import Budget
    from tolariad.core.state import RunState


class Quantiles(msgspec.Struct, frozen=True, kw_only=True):
    """Three quantiles of some durations."""

    p50: float
    p95: float
    p99: float


class BudgetRow(Copying, frozen=True, kw_only=True):
    """One budget: its limit in this run and its measurements, in `unit`.

    `breaches` of the `count` measurements were over `limit`. Quantiles are absent if nothing was measured. `setting` is
    the configuration key that overrides the limit. `compares`: what is compared with what, if the name does not say it.
    Of durations that exclude the wait for a processor: `waited` is that wait, `clock` the same durations with it.
    """

    name: str
    limit: float
    unit: Unit
    kind: Kind
    part_of: str | None
    setting: str | None
    source: str
    compares: str | None = None
    count: int
    breaches: int
    p50: float | None
    p95: float | None = None
    p99: float | None
    worst: float | None
    clock: Quantiles | None = None
    waited: Quantiles | None = None


class BudgetTable(msgspec.Struct, frozen=True, kw_only=True):
    """All budgets. `act`: overruns may lead to conservative mode. `open`: the budgets whose breakers are open.

    `slow_boundaries`: epoch boundaries over their budget, in a row. `since`: the start of the measurements. A live
    daemon has those since its start; without it, they are of the whole run.
    """

    act: bool
    since: str | None
    slow_boundaries: int
    open: tuple[str, ...]
    budgets: tuple[BudgetRow, ...]


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
    held = retention.used(state.checkpoints) / 1e9
    return with_one(Histogram(), held, state.overruns.limit_of(budget.name)) if held else Histogram()


def _budget_row(overruns: BudgetState, budget: Budget, histogram: Histogram) -> BudgetRow:
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


class RateGroup(msgspec.Struct, frozen=True, kw_only=True):
    """One parameter group. `now` is the rate of the last update, if there was one, `next` of the one to come.

    `policy`: of a function, its file and name. `curve_steps`: the length of its schedule, if there is one. `waiting`
    counts the pending orders. The `changed_*` fields describe the newest order or plateau, if there was one.
    """

    name: str
    policy: str
    base: float
    now: float | None
    next: float
    waiting: int
    curve_steps: int | None = None
    changed_step: int | None = None
    changed_rate: float | None = None
    changed_by: str | None = None
    changed_why: str | None = None
    changed_time: str | None = None


class RateTable(msgspec.Struct, frozen=True, kw_only=True):
    """All groups, in the order of the optimizer's. `step` is the last applied one.

    `violations` counts changes of a rate from outside the rate controller. None of them affected an update.
    """

    step: int
    conservative: bool
    violations: int
    groups: tuple[RateGroup, ...]


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
    rates, waiting = state.rates, state.boundary.of_kind(SetRate)
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
        curve_steps=group.schedule.total_steps,
        changed_step=change.step if change else None,
        changed_rate=change.rate if change else None,
        changed_by=change.by if change else None,
        changed_why=change.reason if change else None,
        changed_time=rfc3339(change.wall) if change else None,
    )


class SeedStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A slot that is not empty, or not free yet: its stage by Leyline's name, and the seed's share in the output."""

    slot: str
    stage: str
    alpha: float


class SeedRow(msgspec.Struct, frozen=True, kw_only=True):
    """One slot and its seed. `stage` is its name in Leyline; in DORMANT the slot is empty, and most fields are absent.

    `alpha`: the seed's share in the slot's output. `number`: which germination of the run it is, from 1. `waiting`: the
    stage of a pending move. `steps` in this stage, and `epochs` since the germination, that were completed.
    `born_step`: the first update with the seed. `free_after`: the epoch after which a culled slot can germinate again.
    The last measurements are those of an epoch's end or of a gate: `gradient_norm`, `learning_rate`, and `dropped`
    updates since the move.
    """

    slot: str
    layer_depth: int
    stage: str
    alpha: float
    number: int | None = None
    born_step: int | None = None
    blueprint: str | None = None
    parameters: int | None = None
    steps: int | None = None
    epochs: int | None = None
    gradient_norm: float | None = None
    learning_rate: float | None = None
    dropped: int | None = None
    waiting: str | None = None
    quarantine: str | None = None
    free_after: int | None = None
    moved_step: int | None = None
    moved_by: str | None = None
    moved_why: str | None = None


class SeedTable(msgspec.Struct, frozen=True, kw_only=True):
    """All slots, in the order of the model's modules. `step` is the last applied one.

    `germinations`: how many were ever ordered. `blueprints`: the names that a germination can give.
    """

    step: int
    conservative: bool
    germinations: int
    blueprints: tuple[str, ...]
    slots: tuple[SeedRow, ...]


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
    waiting, entry = seeds.waiting_move(state, slot), state.quarantine.of_seed(slot)
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
        free_after=None if is_there else seeds.embargo_ends(state, seed),
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
