"""The rules of learning rates: orders from acceptance to effect, plateaus, and the check of every step."""

from __future__ import annotations

from typing import Final, Protocol

from msgspec.structs import replace

from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.core.calc.learning_rate.curve import rates_digest
from tolariad.core.calc.learning_rate.group import (
    VAL_LOSS,
    Group,
    after_epoch,
    coming,
    curve_of,
    packed_length,
    rate_of,
    refusal,
    with_order,
)
from tolariad.core.calc.learning_rate.schedule import LRPolicy
from tolariad.core.calc.learning_rate.tabulated import PACKED_MAX, Tabulated, table_refusal
from tolariad.core.decision import Decision
from tolariad.core.engine import At


class Reads(st.HasRun, st.HasProgress, st.HasTrainer, st.HasRates, st.HasBoundary, st.HasRollbacks, Protocol):
    """The slices that the rules of learning rates read."""


_ROWS_AT_ONCE: Final = 64


# -- what a trainer says of its groups ---------------------------------------------------------------------------------


def registered(state: Reads, report: m.ReadyReport, _: At[Reads]) -> Decision | None:
    """Record the groups with which a trainer was built, if they differ from the known ones and it may train."""
    if state.run.phase is st.Phase.FAILED:
        return None
    known = tuple((group.name, group.schedule) for group in state.rates.groups)
    if not report.groups or known == tuple((group.name, group.schedule) for group in report.groups):
        return None
    return Decision((m.LrGroupsRegistered(groups=report.groups),))


def restored(state: Reads, report: m.TrainingStartedReport | m.RolledBackReport, at: At[Reads]) -> Decision | None:
    """Record the rates of a trainer that is at a rollback's target, if the fold still has those from after it."""
    if isinstance(report, m.TrainingStartedReport):
        stands_there = at.was.rates.stale and not state.rates.stale and state.progress.rerun is None
    else:
        stands_there = at.was.rollbacks.open is not None and state.rollbacks.open is None
    known, found = state.rates, report.rates
    if not stands_there or found is None:
        return None
    is_known = (found.groups, found.orders) == (known.groups, state.boundary.acted)
    return None if is_known and not found.losses else Decision((_told(found, at.was),))


def standing(state: Reads, report: m.RatesStandingReport, _: At[Reads]) -> Decision | None:
    """Record the rates of a trainer that began before a rollback's target and has now reached it."""
    return Decision((_told(report.rates, state),)) if state.rates.stale else None


def _told(found: m.Standing, before: Reads) -> m.RatesRestored:
    """Return the event. `before`: a state that still has the rates from after the target."""
    restored = {group.name: group for group in found.groups}
    undone = tuple(
        m.UndoneRate(group=name, rate=change.rate, step=change.step)
        for name, change in before.rates.changes.items()
        if change.by != st.PLATEAU and name in restored and restored[name] != before.rates.group(name)
    )
    return m.RatesRestored.of(found, undone=undone)


# -- orders ------------------------------------------------------------------------------------------------------------


def order(state: Reads, command: m.LrSet) -> m.OrderGiven | m.Refusal:
    """Accept or refuse an order of a rate."""
    rates, boundary, phase = state.rates, state.boundary, state.run.phase
    if phase in st.TERMINAL or phase is st.Phase.STOPPING:
        return m.Refusal("WrongPhase", f"the run is {phase.value}; this needs a run that trains or will")
    group = rates.group(command.group)
    if group is None:
        known = ", ".join(one.name for one in rates.groups) or "none yet: the trainer is still being built"
        return m.Refusal("NotFound", f"there is no group {command.group!r}; there are {known}")
    if len(boundary.waiting) >= st.WAITING_MAX:
        return m.Refusal("Refused", f"{st.WAITING_MAX} orders wait for their boundary already")
    policy = command.policy if command.function is None else LRPolicy.FUNCTION
    if (policy is LRPolicy.FUNCTION) != (command.function is not None):
        return m.Refusal(
            "Refused", "a function comes with its table: `tolaria lr set --policy file.py:function` makes it"
        )
    expected = _once_all_act(boundary, group, state.progress.step + 1)
    why = None if command.function is None else _table_refusal(rates.groups, group, command.function)
    if why is None:
        step, most = state.progress.step + 1, rates.max_order_factor
        why = refusal(expected, step, command.value, policy, most, function=command.function)
    if why is not None:
        return m.Refusal("Refused", why)
    return m.OrderGiven(
        order=m.SetRate(group=command.group, value=command.value, policy=policy, function=command.function)
    )


def adjust(state: Reads, command: m.AdjustOptimizer) -> Decision | m.Refusal:
    """Accept an order of hyper-parameters, with one of a rate for each group if `lr` is among them; or refuse all."""
    groups = [group for group in state.rates.groups if m.is_of(command.optimizer, group.name)]
    if not groups:
        known = ", ".join(group.name for group in state.rates.groups) or "none yet: the trainer is still being built"
        return m.Refusal("NotFound", f"there is no optimizer or group {command.optimizer!r}; the groups are {known}")
    values = {name: value for name, value in command.values.items() if name != m.RATE}
    if not command.values:
        return m.Refusal("Refused", "it names no hyper-parameter")
    actor = m.Actor(program="strategy", reason=command.reason)
    events: list[m.Event] = []
    for lr_set in _rates_of(state, groups, command.values.get(m.RATE)):
        found = order(state, lr_set)
        if isinstance(found, m.Refusal):
            return found
        events.append(replace(found, actor=actor))
    if values:
        events.append(m.OrderGiven(order=m.SetHyperparameters(optimizer=command.optimizer, values=values), actor=actor))
    if len(events) + len(state.boundary.waiting) > st.WAITING_MAX:
        return m.Refusal("Refused", f"{len(state.boundary.waiting)} orders wait for their boundary already")
    if not events:
        return m.Refusal("Refused", f"the rates of {', '.join(group.name for group in groups)} are 0 and stay there")
    # The id is remembered once.
    return Decision((replace(events[0], id=command.id), *events[1:]))


def _rates_of(state: Reads, groups: list[Group], value: float | None) -> list[m.LrSet]:
    """Return an order for each group that is not stopped: all keep their ratio to the first one."""
    step = state.progress.step + 1
    moving = [(group, rate) for group in groups if (rate := rate_of(group, step)) > 0]
    if value is None or not moving:
        return []
    first = moving[0][1]
    return [m.LrSet(group=group.name, value=value * (rate / first)) for group, rate in moving]


def _table_refusal(groups: tuple[Group, ...], group: Group, table: Tabulated) -> str | None:
    """Return why this table may not be put into the state, or None."""
    kept = (replace(one, function=None) if one is group else one for one in groups)
    if sum(map(packed_length, kept)) + len(table.packed) > PACKED_MAX:
        return f"the tables of all groups would have more than {PACKED_MAX} characters, which is the limit"
    return table_refusal(table, group.schedule.total_steps)


def _once_all_act(boundary: st.Boundary, group: Group, step: int) -> Group:
    """Return the group after its waiting orders: the next order is checked against the rate that it will find."""
    for _, one in boundary.of_kind(m.SetRate):
        if one.group == group.name:
            group = with_order(group, one.value, _curve(group, one, step), one.policy, one.function)
    return group


def _curve(group: Group, one: m.SetRate, step: int) -> float:
    """Return the rate of the group's curve at `step` under the order's policy.

    `with_order` with any value gives the policy.
    """
    return curve_of(with_order(group, one.value, 0.0, one.policy, one.function), step)


def back_off(
    state: Reads, _: m.TrainingStarted | m.RatesRestored | m.RerunFinished | m.RunResumed, __: At[Reads]
) -> Decision | None:
    """Multiply every rate by the factor of a rollback, after training is at its target.

    If there are more groups than orders may wait, no orders are made.
    """
    factor, training = state.rollbacks.rate_factor, state.trainer.began and state.run.phase is st.Phase.RUNNING
    if factor == 1.0 or not training or state.progress.rerun is not None or state.rates.stale:
        return None
    step = state.progress.step + 1
    groups = [group for group in state.rates.groups if rate_of(group, step) > 0]
    if len(groups) + len(state.boundary.waiting) > st.WAITING_MAX:
        groups = []
    by = m.Actor(program="tolariad", reason=f"a rollback multiplies rates by {factor:.6g}")
    orders = (
        m.OrderGiven(order=m.SetRate(group=one.name, value=rate_of(one, step) * factor), actor=by) for one in groups
    )
    return Decision((m.RatesBackedOff(factor=factor, groups=len(groups)), *orders))


def acts(state: Reads, order: m.SetRate, report: m.BoundaryOrderReport) -> m.Acts | str:
    """Return the order with the rate of the curve at its step; a sentence if its group is gone."""
    group, step = state.rates.group(order.group), report.applied_before_step
    if group is None:
        return f"there is no group {order.group!r} any more"
    before = rate_of(group, max(1, step - 1))
    return m.Acts(replace(order, curve=_curve(group, order, step)), m.RateSet(before=before))


# -- plateaus and checks -----------------------------------------------------------------------------------------------


def plateaus(_: Reads, event: m.EpochFinished, at: At[Reads]) -> Decision | None:
    """Record the plateaus at an epoch's end, or that no metric could tell. The groups are those before it."""
    rates = at.was.rates
    adaptive = _adaptive(rates)
    if not adaptive:
        return None
    if event.metric is None:
        names = tuple(group.name for group in adaptive)
        return None if rates.unjudged else Decision((m.PlateauUnjudged(epoch=event.epoch, groups=names),))
    return _reached(adaptive, event, event.metric, event.metric_name)


def plateaus_within(_: Reads, event: m.ValidationFinished, at: At[Reads]) -> Decision | None:
    """Record the plateaus at a validation within an epoch that has a loss."""
    adaptive, loss = _adaptive(at.was.rates), event.metrics.get("loss")
    return _reached(adaptive, event, loss, VAL_LOSS) if adaptive and event.batch and loss is not None else None


def _adaptive(rates: st.Rates) -> list[Group]:
    return [group for group in rates.groups if group.policy is LRPolicy.MORPHO_ADAPTIVE]


def _reached(
    adaptive: list[Group], event: m.EpochFinished | m.ValidationFinished, metric: float, name: str
) -> Decision:
    """Record each group whose rate this metric lowers."""
    events: list[m.Event] = []
    for group in adaptive:
        before = rate_of(group, event.step + 1)
        rate = rate_of(after_epoch(group, event.step, metric), event.step + 1)
        if rate < before:
            reached = m.PlateauReached(
                group=group.name,
                epoch=event.epoch,
                applied_before_step=event.step + 1,
                metric=name,
                before=rate_of(group, event.step),
                rate=rate,
            )
            events.append(reached)
    return Decision(tuple(events))


class _Rows:
    """The rates of several steps, computed at once, for one tuple of groups, compared by identity."""

    def __init__(self) -> None:
        self.groups: tuple[Group, ...] = ()
        self.first = 0
        self.digests: list[int] = []

    def digest(self, groups: tuple[Group, ...], step: int) -> int:
        """Return the digest over the rates of update `step`."""
        index = step - self.first
        if groups is not self.groups or not 0 <= index < len(self.digests):
            self.groups, self.first, index = groups, step, 0
            self.digests = [rates_digest(row) for row in coming(groups, step, _ROWS_AT_ONCE)]
        return self.digests[index]


_rows: Final = _Rows()


def check(state: Reads, event: m.StepCompleted, _: At[Reads]) -> Decision | None:
    """The kernel's own check: record a violation if the rates of this step do not follow from the journal."""
    groups = state.rates.groups
    if not groups or _rows.digest(groups, event.step) == event.rates:
        return None
    violation = m.LrViolationDetected(
        step=event.step,
        group=groups[0].name,
        what=m.DIGEST_DIFFERS,
        expected=rate_of(groups[0], event.step),
        found=event.lr,
    )
    return Decision((violation,))
