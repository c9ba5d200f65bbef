"""The learning rates as the journal knows them: slice, apply table, orders from acceptance to effect, the kernel's check.

Invariants: an order is durable before it acts and has exactly one end; it acts at the same step however often that step
is run again (the script carries it), and one that no durable step has seen goes to the next trainer. Groups here and in
the trainer go through the same functions in the same order, so the digests of their rates are equal, bit for bit.
It must not know: optimizers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from tolariad.core.decision import Accepted, Decision, Refusal
from tolariad.core.learning_rate import (
    Group,
    LRPolicy,
    after_epoch,
    carried_over,
    coming,
    curve_of,
    rate_of,
    rates_digest,
    refusal,
    with_order,
)
from tolariad.core.run import TERMINAL, Phase
from tolariad.core.vocabulary import Actor, Event, rollback, steps
from tolariad.core.vocabulary import checkpoints as ck
from tolariad.core.vocabulary import learning_rate as lr
from tolariad.core.vocabulary import run as run_words
from tolariad.core.vocabulary.base import ApplyTable, Cause, storable

if TYPE_CHECKING:
    from tolariad.core.state import RunState

PENDING_MAX: Final = 64
GROUPS_MAX: Final = 512
_ROWS_AT_ONCE: Final = 64


class Order(msgspec.Struct, frozen=True):
    """An accepted order that has not acted yet."""

    group: str
    value: float
    policy: LRPolicy | None
    cause: Cause
    by: str
    wall: int
    reason: str = ""


class Change(msgspec.Struct, frozen=True):
    """Why a group's rate is what it is, where it is not only its schedule: the newest order or plateau.

    `step` is the first one at `rate`, `before` the rate of the update before it, however many changes lie between.
    """

    step: int
    before: float
    rate: float
    by: str
    reason: str
    wall: int


class Rates(msgspec.Struct, frozen=True):
    """Slice of RunState. `pending`: oldest first, PENDING_MAX at most; `changes`: by group.

    `acted`: orders that did, on the living line. `stale`: groups and `acted` are those behind a rollback's target, until
    the trainer that starts there, or comes there again, says what they are. `unjudged`: the newest epoch had no metric for
    its plateaus, and that was said.
    """

    groups: tuple[Group, ...] = ()
    pending: tuple[Order, ...] = ()
    changes: dict[str, Change] = {}
    max_order_factor: float = 10.0
    acted: int = 0
    stale: bool = False
    unjudged: bool = False

    def group(self, name: str) -> Group | None:
        """The group of that name."""
        return next((group for group in self.groups if group.name == name), None)


def _policy(s: Rates, e: run_words.RunStarted | run_words.ConfigChanged, _: Cause) -> Rates:
    return replace(s, max_order_factor=e.policy.max_order_factor)


def _registered(s: Rates, e: lr.LrGroupsRegistered, _: Cause) -> Rates:
    configured = tuple(Group(group.name, group.schedule) for group in e.groups[:GROUPS_MAX])
    groups = carried_over(configured, s.groups)
    names = {group.name for group in groups}
    return replace(s, groups=groups, changes={name: one for name, one in s.changes.items() if name in names})


def _regrouped(s: Rates, e: lr.LrGroupsChanged, _: Cause) -> Rates:
    names = {group.name for group in e.groups}
    changes = {name: one for name, one in s.changes.items() if name in names}
    return replace(s, groups=e.groups[:GROUPS_MAX], changes=changes)


def _ordered(s: Rates, e: lr.RateOrdered, at: Cause) -> Rates:
    actor = e.actor or Actor()
    order = Order(e.group, e.value, e.policy, at, actor.program, e.wall, actor.reason)
    return replace(s, pending=(*s.pending, order)[-PENDING_MAX:])


def _without(s: Rates, seq: int) -> tuple[Order, ...]:
    return tuple(order for order in s.pending if order.cause.seq != seq)


def _replaced(s: Rates, name: str, group: Group) -> tuple[Group, ...]:
    return tuple(group if one.name == name else one for one in s.groups)


def _changed(s: Rates, e: lr.RateChanged, _: Cause) -> Rates:
    group = s.group(e.group)
    if group is None:
        return replace(s, pending=_without(s, e.cause), acted=e.number)
    order = next((one for one in s.pending if one.cause.seq == e.cause), None)
    by, reason = (order.by, order.reason) if order else ("", "")
    change = Change(e.applied_before_step, _used_before(s, e), e.rate, by or "tolariad", reason, e.wall)
    return replace(
        s,
        groups=_replaced(s, e.group, with_order(group, e.rate, e.curve, e.policy)),
        pending=_without(s, e.cause),
        changes={**s.changes, e.group: change},
        acted=e.number,
    )


def _used_before(s: Rates, e: lr.RateChanged | lr.PlateauReached) -> float:
    """The rate of the update before the change: of several at one boundary, what the first of them found."""
    earlier = s.changes.get(e.group)
    return earlier.before if earlier is not None and earlier.step == e.applied_before_step else e.before


def _aborted(s: Rates, e: lr.RateOrderAborted, _: Cause) -> Rates:
    return replace(s, pending=_without(s, e.cause))


def _plateau(s: Rates, e: lr.PlateauReached, _: Cause) -> Rates:
    if s.group(e.group) is None:
        return s
    why = f"{e.metric} stopped to fall in epoch {e.epoch}"
    change = Change(e.applied_before_step, _used_before(s, e), e.rate, "plateau", why, e.wall)
    return replace(s, changes={**s.changes, e.group: change})


def _epoch_finished(s: Rates, e: steps.EpochFinished, _: Cause) -> Rates:
    """Every adaptive group looks at the epoch's metric, which stands in the event for this."""
    if e.metric is None or not s.groups:
        return s
    metric = e.metric
    return replace(s, groups=tuple(after_epoch(group, e.step, metric) for group in s.groups), unjudged=False)


def _unjudged(s: Rates, _: lr.PlateauUnjudged, __: Cause) -> Rates:
    return replace(s, unjudged=True)


def _restored(s: Rates, e: lr.RatesRestored, _: Cause) -> Rates:
    return replace(s, groups=e.groups[:GROUPS_MAX], acted=storable(e.orders), stale=False)


def _rolled_back(s: Rates, _: rollback.RolledBack, __: Cause) -> Rates:
    return replace(s, stale=True)


def _training_started(s: Rates, e: ck.TrainingStarted, _: Cause) -> Rates:
    return s if s.stale == e.rates_owed else replace(s, stale=e.rates_owed)


APPLY: Final[ApplyTable] = {
    lr.RatesRestored: _restored,
    rollback.RolledBack: _rolled_back,
    ck.TrainingStarted: _training_started,
    run_words.RunStarted: _policy,
    run_words.ConfigChanged: _policy,
    lr.LrGroupsRegistered: _registered,
    lr.LrGroupsChanged: _regrouped,
    lr.RateOrdered: _ordered,
    lr.RateChanged: _changed,
    lr.RateOrderAborted: _aborted,
    lr.PlateauReached: _plateau,
    lr.PlateauUnjudged: _unjudged,
    steps.EpochFinished: _epoch_finished,
}


def restored(state: RunState, found: lr.Standing | None) -> tuple[Event, ...]:
    """What a trainer that stands at a rollback's target says of its rates, where the fold still has those behind it."""
    known = state.rates
    if found is None or not (found.losses or (found.groups, found.orders) != (known.groups, known.acted)):
        return ()
    return (_told(found),)


def decide_standing(state: RunState, report: lr.RatesStandingReport) -> Decision:
    """A trainer that began before a rollback's target has come there."""
    return Decision((_told(report.rates),)) if state.rates.stale else Decision()


def _told(found: lr.Standing) -> lr.RatesRestored:
    return lr.RatesRestored(groups=found.groups, orders=found.orders, losses=found.losses, loss_sum=found.loss_sum)


# -- orders ----------------------------------------------------------------------------------------------------------------


def decide_set(state: RunState, command: lr.LrSet, actor: Actor) -> Decision:
    """Accept an order of a rate, or say why not."""
    rates, phase = state.rates, state.run.phase
    if phase in TERMINAL or phase is Phase.STOPPING:
        return _refused(state, "WrongPhase", f"the run is {phase.value}; this needs a run that trains or will")
    group = rates.group(command.group)
    if group is None:
        known = ", ".join(one.name for one in rates.groups) or "none yet: the trainer is still being built"
        return _refused(state, "NotFound", f"there is no group {command.group!r}; there are {known}")
    if len(rates.pending) >= PENDING_MAX:
        return _refused(state, "Refused", f"{PENDING_MAX} orders wait for their boundary already")
    expected = _once_all_act(rates, group, state.progress.step + 1)
    why = refusal(expected, state.progress.step + 1, command.value, command.policy, rates.max_order_factor)
    if why is not None:
        return _refused(state, "Refused", why)
    event = lr.RateOrdered(group=command.group, value=command.value, policy=command.policy, id=command.id, actor=actor)
    effect = lr.SetRate(group=command.group, value=command.value, policy=command.policy)
    # A trainer that is not built yet gets it with its order to train.
    return Decision((event,), (effect,) if state.trainer.alive and state.trainer.ready else (), Accepted())


def _once_all_act(rates: Rates, group: Group, step: int) -> Group:
    """The group after the orders that wait for it: the next one is measured by what it will find."""
    for order in rates.pending:
        if order.group == group.name:
            group = _obeyed(group, order, step)
    return group


def _obeyed(group: Group, order: Order, step: int) -> Group:
    return with_order(group, order.value, _curve(group, order, step), order.policy)


def _curve(group: Group, order: Order, step: int) -> float:
    """What the group's curve is at `step` under the order's policy: `with_order` with any value tells the policy."""
    return curve_of(with_order(group, order.value, 0.0, order.policy), step)


def backed_off(state: RunState, factor: float) -> tuple[Event, ...]:
    """Orders for every group, a share of what its rate is now; none where there are more groups than orders may wait."""
    known, step = state.rates, state.progress.step + 1
    groups = [group for group in known.groups if rate_of(group, step) > 0]
    if len(groups) + len(known.pending) > PENDING_MAX:
        groups = []
    by = Actor(program="tolariad", reason=f"a rollback multiplies rates by {factor:.6g}")
    orders = (lr.RateOrdered(group=one.name, value=rate_of(one, step) * factor, actor=by) for one in groups)
    return (rollback.RatesBackedOff(factor=factor, groups=len(groups)), *orders)


def _refused(state: RunState, error: str, why: str) -> Decision:
    return Decision(answer=Refusal(error=error, why=why, phase=state.run.phase.value))


def waiting_orders(state: RunState) -> tuple[lr.SetRate, ...]:
    """For a new trainer, behind its order to train: what was accepted and has not acted."""
    return tuple(
        lr.SetRate(group=one.group, value=one.value, policy=one.policy, cause=one.cause.seq)
        for one in state.rates.pending
    )


def decide_applied(state: RunState, report: lr.RateSetReport) -> Decision:
    """The trainer obeyed, or could not; an order that has its end already is passed by."""
    order = next((one for one in state.rates.pending if one.cause.seq == report.order), None)
    if order is None:
        return Decision()
    group, at = state.rates.group(order.group), order.cause
    if group is None or report.why:
        why = report.why or f"there is no group {order.group!r} any more"
        return Decision((lr.RateOrderAborted(group=order.group, why=why, cause=at.seq, root=at.root),))
    step = report.applied_before_step
    changed = lr.RateChanged(
        group=order.group,
        applied_before_step=step,
        before=rate_of(group, max(1, step - 1)),
        rate=order.value,
        curve=_curve(group, order, step),
        number=state.rates.acted + 1,
        policy=order.policy,
        cause=at.seq,
        root=at.root,
    )
    return Decision((changed,))


# -- what follows from reports --------------------------------------------------------------------------------------------


def registered(state: RunState, groups: tuple[Group, ...]) -> tuple[Event, ...]:
    """The groups as a trainer was built with them, where they are not those known."""
    known = tuple((group.name, group.schedule) for group in state.rates.groups)
    if not groups or known == tuple((group.name, group.schedule) for group in groups):
        return ()
    return (lr.LrGroupsRegistered(groups=groups),)


def after_epoch_events(state: RunState, finished: steps.EpochFinished) -> tuple[Event, ...]:
    """The plateaus that the epoch's end made; or that it could make none."""
    adaptive = [group for group in state.rates.groups if group.policy is LRPolicy.MORPHO_ADAPTIVE]
    if finished.metric is None:
        if not adaptive or state.rates.unjudged:
            return ()
        return (lr.PlateauUnjudged(epoch=finished.epoch, groups=tuple(group.name for group in adaptive)),)
    events: list[Event] = []
    for group in adaptive:
        before = rate_of(group, finished.step + 1)
        rate = rate_of(after_epoch(group, finished.step, finished.metric), finished.step + 1)
        if rate < before:
            reached = lr.PlateauReached(
                group=group.name,
                epoch=finished.epoch,
                applied_before_step=finished.step + 1,
                metric=finished.metric_name,
                before=rate_of(group, finished.step),
                rate=rate,
            )
            events.append(reached)
    return tuple(events)


class _Rows:
    """The rates of some steps, drawn in one go; of one tuple of groups, by identity: state is never changed in place."""

    def __init__(self) -> None:
        self.groups: tuple[Group, ...] = ()
        self.first = 0
        self.digests: list[int] = []

    def digest(self, groups: tuple[Group, ...], step: int) -> int:
        """The digest over the rates of update `step`."""
        index = step - self.first
        if groups is not self.groups or not 0 <= index < len(self.digests):
            self.groups, self.first, index = groups, step, 0
            self.digests = [rates_digest(row) for row in coming(groups, step, _ROWS_AT_ONCE)]
        return self.digests[index]


_rows: Final = _Rows()


def check_step(state: RunState, report: steps.StepReport) -> tuple[lr.LrViolationDetected, ...]:
    """The kernel's own check: the rates of this step are those that the journal leads to, or it says so."""
    groups = state.rates.groups
    if not groups or _rows.digest(groups, report.step) == report.rates:
        return ()
    violation = lr.LrViolationDetected(
        step=report.step,
        group=groups[0].name,
        what=lr.DIGEST_DIFFERS,
        expected=rate_of(groups[0], report.step),
        found=report.lr,
    )
    return (violation,)


def violation(report: lr.RateViolationReport) -> lr.LrViolationDetected:
    """What the trainer found and put right."""
    return lr.LrViolationDetected(
        step=report.step,
        group=report.group,
        what=report.what,
        expected=report.expected,
        found=report.found,
        where=report.where,
        count=report.count,
    )
