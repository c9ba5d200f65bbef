"""A parameter group's rate as it is in force: its schedule, and what orders and plateaus made of it.

Promises: every function gives a new value and is pure; two sides that apply the same orders and metrics at the same
steps have equal rates, bit for bit. It must not know: who orders, and how an order becomes durable.
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
    """An order in force: the rate is `value` where the curve is `curve`, and scales with it (`curve` 0: it stays)."""

    value: float
    curve: float


class Group(Struct, frozen=True, omit_defaults=True):
    """`ordered` is a policy that an order put in place of the schedule's own; `plateau` is None before the first metric."""

    name: str
    schedule: Schedule
    ordered: LRPolicy | None = None
    scale: Scale | None = None
    plateau: Plateau | None = None

    @property
    def policy(self) -> LRPolicy:
        """The policy in force."""
        return self.ordered or self.schedule.policy


def curve_of(group: Group, step: int) -> float:
    """The rate at `step` before an order's scale."""
    schedule = _in_force(group)
    if group.plateau is not None and step - schedule.start > schedule.warmup_steps:
        return group.plateau.rate
    return rate(schedule, step)


def rate_of(group: Group, step: int) -> float:
    """The learning rate of update `step`."""
    return _bounded(group, _scaled(group.scale, curve_of(group, step)))


def rates_at(groups: Sequence[Group], step: int) -> tuple[float, ...]:
    """All groups' rates of update `step`, in their order."""
    return tuple(rate_of(group, step) for group in groups)


def coming(groups: Sequence[Group], first: int, count: int) -> Iterator[tuple[float, ...]]:
    """`rates_at` of `count` steps from `first` on, in a twentieth of the time; each row is made when it is asked for."""
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
    """The group once an order acts at `step`: its rate is `value` there, and the rest of the curve scales with it."""
    changed = group if policy is None else replace(group, ordered=policy, plateau=None)
    return with_order(group, value, curve_of(changed, step), policy)


def with_order(group: Group, value: float, curve: float, policy: LRPolicy | None) -> Group:
    """`ordered` with the curve's rate at that step as it was recorded: a re-run must not draw it anew."""
    if policy is LRPolicy.FROZEN:
        return replace(group, ordered=policy, plateau=None, scale=None)
    if policy is not None:
        group = replace(group, ordered=policy, plateau=None)
    return replace(group, scale=Scale(value, curve))


def after_epoch(group: Group, step: int, metric: float) -> Group:
    """The group once the epoch that ended with `step` gave `metric`; only MORPHO_ADAPTIVE looks, and not while it warms."""
    schedule = _in_force(group)
    if schedule.policy is not LRPolicy.MORPHO_ADAPTIVE or step - schedule.start < schedule.warmup_steps:
        return group
    before = group.plateau or Plateau(schedule.base_lr)
    return replace(group, plateau=observed(before, schedule.plateau, schedule.min_lr, metric))


def metric_of(metrics: dict[str, float]) -> tuple[str, float] | None:
    """The metric a plateau is judged by, with its name: `val_loss`, else `host_loss`, else `loss`."""
    return next(((name, metrics[name]) for name in METRICS if name in metrics), None)


def carried_over(groups: Sequence[Group], known: Sequence[Group]) -> tuple[Group, ...]:
    """`groups` as configured, with the orders and plateaus that groups of the same names have in `known`."""
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
