"""The types of the control interface's replies: the tables of budgets, rates, seeds and pruning.

Servers make them from the folded state; clients check what they receive against them. Quick to load.
"""

from __future__ import annotations

from typing import Final

import msgspec

from tolariad.control.replies import PruneWindow, RunStatus
from tolariad.core.calc.copying import Copying
from tolariad.core.calc.health.budgets import Kind, Unit


class Quantiles(msgspec.Struct, frozen=True, kw_only=True):
    """Three quantiles of some durations."""

    p50: float
    p95: float
    p99: float


class BudgetRow(Copying, frozen=True, kw_only=True):
    """One budget: its limit in this run and its measurements, in `unit`.

    * `setting`: the configuration key that overrides the limit.
    * `compares`: what is compared with what, if the name does not say it.
    * `breaches`: the number of measurements, of `count`, that were over `limit`.
    * `p50` and the other quantiles: absent if nothing was measured.
    * `waited`: for durations that exclude the wait for a processor, that wait.
    * `clock`: the same durations including the wait.
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


class RateGroup(msgspec.Struct, frozen=True, kw_only=True):
    """One parameter group. `now` is the rate of the last update, if there was one, `next` of the one to come.

    * `policy`: the schedule's name; for a user's function, its file and name.
    * `curve_steps`: the length of its schedule, if there is one.
    * `waiting`: the number of pending orders.
    * `changed_step`, `changed_rate`, ...: the newest order or plateau, if there was one.
    * `frozen`: the group belongs to a seed that no update moves, whatever the rate.
    """

    name: str
    policy: str
    base: float
    now: float | None
    next: float
    waiting: int
    frozen: bool = False
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


class SeedRow(msgspec.Struct, frozen=True, kw_only=True):
    """One slot and its seed. `stage` is its name in Leyline; in DORMANT the slot is empty, and most fields are absent.

    * `alpha`: the seed's share in the slot's output.
    * `number`: the number of its germination in this run, from 1.
    * `waiting`: the stage of a pending move.
    * `steps`, `epochs`: the steps completed in this stage, and the epochs completed since the germination.
    * `born_step`: the first update with the seed.
    * `free_after`: the epoch after which a culled slot can germinate again.
    * `gradient_norm`, `learning_rate`, `dropped`: the measurements at the last end of an epoch or the last gate.
      `dropped` is the number of updates dropped since the move.
    * `learning`: `train`, or `frozen` if no update moves the seed.
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
    learning: str | None = None
    waiting: str | None = None
    quarantine: str | None = None
    free_after: int | None = None
    moved_step: int | None = None
    moved_by: str | None = None
    moved_why: str | None = None


class SeedTable(msgspec.Struct, frozen=True, kw_only=True):
    """All slots, in the order of the model's modules. `step` is the last applied one.

    `germinations` is the number of germinations ever ordered, `blueprints` the names that a germination can give.
    """

    step: int
    conservative: bool
    germinations: int
    blueprints: tuple[str, ...]
    slots: tuple[SeedRow, ...]


class PruneFound(Copying, frozen=True, kw_only=True):
    """The newest analysis.

    * `channels`, `parameters`: the number of channels and of parameters in the units that it chose.
    * `correlation`: the rank correlation of the importance with the measured change of the loss.
    * `stability`: the rank correlation of the importance with that of the last analysis.
    * `accuracy`: the accuracy of the model as it was analysed; absent if the task has none.
    * `loss`: its loss, if the task has no accuracy.
    * `spread`: the spread of the accuracy, or of the loss relative to itself, in repeated validations.
    * `applicable`: `PruneApply` would be accepted; if not, `why` is the reason.
    """

    cycle: int
    checkpoint: str
    epoch: int
    phase: str
    decision: str
    reasons: tuple[str, ...]
    channels: int
    parameters: int
    estimator: str
    correlation: float | None
    stability: float | None
    accuracy: float | None
    loss: float | None
    spread: float | None
    seconds: float
    applicable: bool
    why: str | None


class PruneMasks(Copying, frozen=True, kw_only=True):
    """The masks of one cycle that are in force, from update `step` on. No parameter counts for two cycles."""

    cycle: int
    step: int
    channels: int
    units: int
    layers: int
    parameters: int


class PruneTable(Copying, frozen=True, kw_only=True):
    """Pruning as of the last event.

    * `why`: the reason of the phase DISABLED. `active_after`: the last epoch of VALIDATION_ONLY.
    * `total`, `total_parameters`: channels and parameters before any pruning; absent until an analysis has counted
      them.
    * `masked`, `removed`: the masked and the removed channels of these.
    * `masked_parameters`, `removed_parameters`: the parameters that went with them.
    * `share`: the share of the parameters that is masked or removed.
    * `budget`, `cap`: the shares of the parameters that one cycle, and all cycles together, may prune in this epoch.
    * `analyzing`: the cycle that is open.
    * `failures`: the number of failed cycles in a row.
    * `rejected`: the masks that proved harmful.
    """

    phase: str
    why: str | None
    epoch: int
    total: int | None
    masked: int
    removed: int
    share: float
    total_parameters: int | None
    masked_parameters: int
    removed_parameters: int
    budget: float
    cap: float
    cycles: int
    analyzing: int | None
    failures: int
    failures_max: int | None
    rejected: int
    importance_bytes: int
    found: PruneFound | None
    masks: tuple[PruneMasks, ...]
    window: PruneWindow | None
    active_after: int | None = None


# By method: the name of the reply's parameter, and its type.
VIEWS: Final[dict[str, tuple[str, type[msgspec.Struct]]]] = {
    "Status": ("status", RunStatus),
    "Budgets": ("table", BudgetTable),
    "LrShow": ("rates", RateTable),
    "SeedsList": ("seeds", SeedTable),
    "PruneStatus": ("pruning", PruneTable),
}
