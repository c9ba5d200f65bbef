"""A parameter group's rate in force: its schedule, changed by orders and plateaus, and which orders it accepts.

Promises: every function is pure and returns a new value. Two processes that apply the same orders and metrics at the
same steps compute the same rates, bit for bit.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from tolariad.core.calc.learning_rate.curve import Shapes, column, rate, top_step
from tolariad.core.calc.learning_rate.schedule import LRPolicy, PlateauRule, Schedule, under_policy
from tolariad.core.calc.learning_rate.tabulated import Tabulated, factors_of

VAL_LOSS: Final = "val_loss"
METRICS: Final = (VAL_LOSS, "host_loss", "loss")
# A smaller reduction is not made; torch calls it `eps`.
_LEAST_REDUCTION: Final = 1e-8
# 0.0007 x 10 is slightly below 0.007, and a user who types that means tenfold.
_ROUNDING: Final = 1.0 + 1e-9


class Plateau(Struct, frozen=True):
    """The rate in force, the `best` metric so far, the `bad` epochs since, and the epochs of cooldown that remain."""

    rate: float
    best: float = math.inf
    bad: int = 0
    cooling: int = 0


class Scale(Struct, frozen=True):
    """An order in force.

    The rate is `value` at the point at which the curve is `curve`, and scales with it (0: constant).
    """

    value: float
    curve: float


class Group(Struct, frozen=True, omit_defaults=True):
    """A parameter group. `ordered`: the policy of an order that replaced the schedule's own; `function`: its table.

    `plateau`: None before the first metric.
    """

    name: str
    schedule: Schedule
    ordered: LRPolicy | None = None
    scale: Scale | None = None
    plateau: Plateau | None = None
    function: Tabulated | None = None

    @property
    def policy(self) -> LRPolicy:
        """Return the policy in force."""
        return self.ordered or self.schedule.policy

    @property
    def policy_name(self) -> str:
        """Return the name of the policy in force; of a function, its file and name."""
        table = in_force(self).function if self.policy is LRPolicy.FUNCTION else None
        return self.policy.value if table is None else table.name


def packed_length(group: Group) -> int:
    """Return how many characters the tables of its functions have."""
    return sum(len(one.packed) for one in (group.schedule.function, group.function) if one is not None)


def other_values(known: Sequence[Group], found: Sequence[Group]) -> str:
    """Return the name of a function that gives other values from the same file for the same horizon; "" without one."""
    tables = {group.name: group.schedule.function for group in known}
    for group in found:
        before, now = tables.get(group.name), group.schedule.function
        if before is None or now is None or before == now or now != replace(before, packed=now.packed):
            continue
        # Compare the values, not the text: another version of zlib packs the same values into another text.
        if factors_of(before) != factors_of(now):
            return now.name
    return ""


def curve_of(group: Group, step: int) -> float:
    """Return the rate at `step` before an order's scale is applied."""
    schedule = in_force(group)
    if group.plateau is not None and step - schedule.start > schedule.warmup_steps:
        return group.plateau.rate
    return rate(schedule, step)


def rate_of(group: Group, step: int) -> float:
    """Return the learning rate of update `step`."""
    return _bounded(group, _scaled(group.scale, curve_of(group, step)))


def coming(groups: Sequence[Group], first: int, count: int) -> Iterator[tuple[float, ...]]:
    """Yield the rates of all groups for `count` steps from `first` on. `rate_of` for each costs twenty times more."""
    shapes: Shapes = {}
    return zip(*[_column(group, first, count, shapes) for group in groups], strict=True)


def _column(group: Group, first: int, count: int, shapes: Shapes) -> list[float]:
    schedule = in_force(group)
    values = column(schedule, first, count, shapes)
    if group.plateau is not None:
        warm = max(0, min(count, schedule.start + schedule.warmup_steps - first + 1))
        values[warm:] = [group.plateau.rate] * (count - warm)
    if group.scale is not None or schedule.max_lr is not None:
        values = [_bounded(group, _scaled(group.scale, value)) for value in values]
    return values


def ordered(
    group: Group, step: int, value: float, policy: LRPolicy | None = None, function: Tabulated | None = None
) -> Group:
    """Return the group after an order acts at `step`. `function`: the table that comes with the policy FUNCTION.

    Its rate there is `value`, and the rest of the curve scales with it.
    """
    return with_order(group, value, curve_of(_under(group, policy, function), step), policy, function)


def with_order(
    group: Group, value: float, curve: float, policy: LRPolicy | None, function: Tabulated | None = None
) -> Group:
    """Return `ordered` with the curve's recorded rate at that step: a re-run must not compute it again."""
    group = _under(group, policy, function)
    return replace(group, scale=None if policy is LRPolicy.FROZEN else Scale(value, curve))


def _under(group: Group, policy: LRPolicy | None, function: Tabulated | None) -> Group:
    return group if policy is None else replace(group, ordered=policy, function=function, plateau=None)


def after_epoch(group: Group, step: int, metric: float) -> Group:
    """Return the group after the epoch that ended with `step` gave `metric`.

    Only MORPHO_ADAPTIVE reacts, and not in its warm-up.
    """
    schedule = in_force(group)
    if schedule.policy is not LRPolicy.MORPHO_ADAPTIVE or step - schedule.start < schedule.warmup_steps:
        return group
    before = group.plateau or Plateau(schedule.base_lr)
    return replace(group, plateau=observed(before, schedule.plateau, schedule.min_lr, metric))


def metric_of(metrics: dict[str, float]) -> tuple[str, float] | None:
    """Return name and value of the metric that plateaus are judged by: `val_loss`, else `host_loss`, else `loss`."""
    return next(((name, metrics[name]) for name in METRICS if name in metrics), None)


def plateau_metric(validated: dict[str, float], train_loss: float | None) -> tuple[str, float | None]:
    """Return name and value of the metric by which an epoch's plateaus are judged; None if it has no value."""
    if "loss" in validated:
        return VAL_LOSS, validated["loss"]
    return ("host_loss", train_loss) if train_loss is not None else ("", None)


def carried_over(groups: Sequence[Group], known: Sequence[Group]) -> tuple[Group, ...]:
    """Return `groups` as configured, with the orders and plateaus of the groups of the same names in `known`."""
    by_name = {group.name: group for group in known}
    return tuple(
        replace(group, ordered=old.ordered, scale=old.scale, plateau=old.plateau, function=old.function)
        if (old := by_name.get(group.name)) is not None
        else group
        for group in groups
    )


def observed(plateau: Plateau, rule: PlateauRule, min_lr: float, metric: float) -> Plateau:
    """Return the plateau after one more epoch with this metric.

    The same bits as torch's ReduceLROnPlateau with mode `min` and a relative threshold, including NaN (it is never
    better).
    """
    better = metric < plateau.best * (1.0 - rule.threshold)
    best = metric if better else plateau.best
    bad = 0 if better else plateau.bad + 1
    cooling = plateau.cooling
    if cooling > 0:
        cooling, bad = cooling - 1, 0
    if bad <= rule.patience:
        return Plateau(plateau.rate, best, bad, cooling)
    lower = max(plateau.rate * rule.factor, min_lr)
    rate = lower if plateau.rate - lower > _LEAST_REDUCTION else plateau.rate
    return Plateau(rate, best, 0, rule.cooldown)


def refusal(
    group: Group,
    step: int,
    value: float,
    policy: LRPolicy | None,
    max_factor: float,
    *,
    function: Tabulated | None = None,
) -> str | None:
    """Return why `value` (under `policy`, if given) may not be this group's rate from `step` on, or None if it may.

    `max_factor`: the factor by which one order may change a rate; 0: unlimited. A group whose rate is 0 is compared
    with its base. `function`: the table of the policy FUNCTION.
    """
    if not math.isfinite(value) or value < 0.0:
        return f"a learning rate is a number from 0 on, not {value}"
    if policy is LRPolicy.FROZEN:
        return None if value == 0.0 else f"a frozen group has rate 0, not {value:g}"
    if policy is None and group.policy is LRPolicy.FROZEN:
        return f"{group.name} is frozen; --policy says what it follows from now on"
    if value == 0.0 and max_factor > 0.0:
        return "rate 0 stops the group: --policy frozen says so"
    most = group.schedule.max_lr
    if most is not None and value > most:
        return f"{value:g} is above max_lr {most:g}"
    too_far = _too_far(group, step, value, max_factor)
    if too_far is not None or policy is None or max_factor <= 0.0:
        return too_far
    return _too_high_later(group, ordered(group, step, value, policy, function), step, max_factor)


def _too_high_later(group: Group, changed: Group, step: int, max_factor: float) -> str | None:
    """Return why an order's curve must not be scaled so: at a restart or after a rise it is far above its value."""
    top = top_step(in_force(changed), step)
    high, most = rate_of(changed, top), max_factor * max(rate_of(group, step), group.schedule.base_lr)
    if high <= most * _ROUNDING:
        return None
    return (
        f"the curve of {changed.policy_name} is low at step {step}. Scaled to its value there, it rises to {high:g} at "
        f"step {top}. That is above {max_factor:g} times the base rate (learning_rate.max_order_factor; 0: no limit)"
    )


def _too_far(group: Group, step: int, value: float, max_factor: float) -> str | None:
    if max_factor <= 0.0:
        return None
    now = rate_of(group, step) or group.schedule.base_lr
    low, high = now / max_factor, now * max_factor
    if low <= value * _ROUNDING and value <= high * _ROUNDING:
        return None
    return (
        f"one order moves a rate at most {max_factor:g}-fold, here to {low:g} up to {high:g}, not to {value:g} "
        "(learning_rate.max_order_factor; 0: no limit)"
    )


def in_force(group: Group) -> Schedule:
    """Return the schedule under the policy in force."""
    return group.schedule if group.ordered is None else under_policy(group.schedule, group.ordered, group.function)


def _scaled(scale: Scale | None, curve: float) -> float:
    if scale is None:
        return curve
    return scale.value * (curve / scale.curve) if scale.curve > 0.0 else scale.value


def _bounded(group: Group, value: float) -> float:
    most = group.schedule.max_lr
    return value if most is None or value <= most else most
