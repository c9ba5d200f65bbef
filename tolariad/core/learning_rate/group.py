"""A parameter group's rate in force: its schedule, changed by orders and plateaus.

Promises: every function is pure and returns a new value. Two processes that apply the same orders and metrics at the
same steps compute the same rates, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from tolariad.core.learning_rate.plateau import Plateau, observed
from tolariad.core.learning_rate.rates import Shapes, column, rate
from tolariad.core.learning_rate.schedule import LRPolicy, Schedule, under_policy

METRICS: Final = ("val_loss", "host_loss", "loss")


class Scale(Struct, frozen=True):
    """An order in force.

    The rate is `value` at the point at which the curve is `curve`, and scales with it (0: constant).
    """

    value: float
    curve: float


class Group(Struct, frozen=True, omit_defaults=True):
    """A parameter group. `ordered`: the policy of an order that replaced the schedule's own.

    `plateau`: None before the first metric.
    """

    name: str
    schedule: Schedule
    ordered: LRPolicy | None = None
    scale: Scale | None = None
    plateau: Plateau | None = None

    @property
    def policy(self) -> LRPolicy:
        """Return the policy in force."""
        return self.ordered or self.schedule.policy


def curve_of(group: Group, step: int) -> float:
    """Return the rate at `step` before an order's scale is applied."""
    schedule = _in_force(group)
    if group.plateau is not None and step - schedule.start > schedule.warmup_steps:
        return group.plateau.rate
    return rate(schedule, step)


def rate_of(group: Group, step: int) -> float:
    """Return the learning rate of update `step`."""
    return _bounded(group, _scaled(group.scale, curve_of(group, step)))


def rates_at(groups: Sequence[Group], step: int) -> tuple[float, ...]:
    """Return the rates of all groups at update `step`, in their order."""
    return tuple(rate_of(group, step) for group in groups)


def coming(groups: Sequence[Group], first: int, count: int) -> Iterator[tuple[float, ...]]:
    """Yield `rates_at` for `count` steps from `first` on, at a twentieth of the cost. Rows are built on demand."""
    shapes: Shapes = {}
    return zip(*[_column(group, first, count, shapes) for group in groups], strict=True)


def _column(group: Group, first: int, count: int, shapes: Shapes) -> list[float]:
    schedule = _in_force(group)
    values = column(schedule, first, count, shapes)
    if group.plateau is not None:
        warm = max(0, min(count, schedule.start + schedule.warmup_steps - first + 1))
        values[warm:] = [group.plateau.rate] * (count - warm)
    if group.scale is not None or schedule.max_lr is not None:
        values = [_bounded(group, _scaled(group.scale, value)) for value in values]
    return values


def ordered(group: Group, step: int, value: float, policy: LRPolicy | None = None) -> Group:
    """Return the group after an order acts at `step`.

    Its rate there is `value`, and the rest of the curve scales with it.
    """
    changed = group if policy is None else replace(group, ordered=policy, plateau=None)
    return with_order(group, value, curve_of(changed, step), policy)


def with_order(group: Group, value: float, curve: float, policy: LRPolicy | None) -> Group:
    """Return `ordered` with the curve's recorded rate at that step: a re-run must not compute it again."""
    if policy is LRPolicy.FROZEN:
        return replace(group, ordered=policy, plateau=None, scale=None)
    if policy is not None:
        group = replace(group, ordered=policy, plateau=None)
    return replace(group, scale=Scale(value, curve))


def after_epoch(group: Group, step: int, metric: float) -> Group:
    """Return the group after the epoch that ended with `step` gave `metric`.

    Only MORPHO_ADAPTIVE reacts, and not in its warm-up.
    """
    schedule = _in_force(group)
    if schedule.policy is not LRPolicy.MORPHO_ADAPTIVE or step - schedule.start < schedule.warmup_steps:
        return group
    before = group.plateau or Plateau(schedule.base_lr)
    return replace(group, plateau=observed(before, schedule.plateau, schedule.min_lr, metric))


def metric_of(metrics: dict[str, float]) -> tuple[str, float] | None:
    """Return name and value of the metric that plateaus are judged by: `val_loss`, else `host_loss`, else `loss`."""
    return next(((name, metrics[name]) for name in METRICS if name in metrics), None)


def carried_over(groups: Sequence[Group], known: Sequence[Group]) -> tuple[Group, ...]:
    """Return `groups` as configured, with the orders and plateaus of the groups of the same names in `known`."""
    by_name = {group.name: group for group in known}
    return tuple(
        replace(group, ordered=old.ordered, scale=old.scale, plateau=old.plateau)
        if (old := by_name.get(group.name)) is not None
        else group
        for group in groups
    )


def _in_force(group: Group) -> Schedule:
    return group.schedule if group.ordered is None else under_policy(group.schedule, group.ordered)


def _scaled(scale: Scale | None, curve: float) -> float:
    if scale is None:
        return curve
    return scale.value * (curve / scale.curve) if scale.curve > 0.0 else scale.value


def _bounded(group: Group, value: float) -> float:
    most = group.schedule.max_lr
    return value if most is None or value <= most else most
