"""The learning rates as recorded in the journal: slice, apply table.

Invariant: the kernel and the trainer apply the same functions to the groups in the same order. So the digests of their
rates are equal, bit for bit. `core.state.boundary` holds the waiting orders, of every kind; this slice holds who gave
them.
"""

from __future__ import annotations

from typing import Final, Protocol

import msgspec
from msgspec.structs import replace

from tolariad.core import messages as m
from tolariad.core.calc.learning_rate.group import Group, after_epoch, carried_over, with_order
from tolariad.core.state.boundary import WAITING_MAX
from tolariad.core.state.fold import ApplyTable

GROUPS_MAX: Final = 512


class GivenBy(msgspec.Struct, frozen=True):
    """The giver of the waiting order with this cause, and the reason."""

    cause: int
    by: str = ""
    reason: str = ""


def with_giver(known: tuple[GivenBy, ...], order: m.Event, at: m.Cause) -> tuple[GivenBy, ...]:
    """Return the givers of the waiting orders and of this new one."""
    actor = order.actor or m.Actor()
    return (*known, GivenBy(at.seq, actor.program, actor.reason))[-WAITING_MAX:]


def without_giver(known: tuple[GivenBy, ...], cause: int) -> tuple[GivenBy, ...]:
    """Return the givers of the orders that still wait after the one with this cause has ended."""
    return tuple(one for one in known if one.cause != cause)


def giver_of(known: tuple[GivenBy, ...], cause: int) -> GivenBy:
    """Return who gave the waiting order with this cause."""
    return next((one for one in known if one.cause == cause), GivenBy(cause))


# Who changed a rate, if nobody ordered it.
PLATEAU: Final = "plateau"


class RateChange(msgspec.Struct, frozen=True):
    """The newest order or plateau that changed a group's rate.

    `step` is the first one at `rate`. `before` is the rate of the update before it, however many changes lie between.
    """

    step: int
    before: float
    rate: float
    by: str
    reason: str
    wall: int


class Rates(msgspec.Struct, frozen=True):
    """Slice of RunState. `given_by`: who gave the waiting orders of rates. `changes`: by group.

    `stale`: after a rollback the groups are still those from after its target, until the trainer at the target reports
    its rates. `unjudged`: the newest epoch had no metric for its plateaus, and that was recorded.
    """

    groups: tuple[Group, ...] = ()
    given_by: tuple[GivenBy, ...] = ()
    changes: dict[str, RateChange] = {}
    max_order_factor: float = 10.0
    stale: bool = False
    unjudged: bool = False

    def group(self, name: str) -> Group | None:
        """Return the group of that name, or None."""
        return next((group for group in self.groups if group.name == name), None)


class HasRates(Protocol):
    """A state with this slice."""

    @property
    def rates(self) -> Rates:
        """Return the learning rates."""


def _policy(s: Rates, e: m.RunStarted | m.ConfigChanged, _: m.Cause) -> Rates:
    return replace(s, max_order_factor=e.policy.max_order_factor)


def _registered(s: Rates, e: m.LrGroupsRegistered, _: m.Cause) -> Rates:
    configured = tuple(Group(group.name, group.schedule) for group in e.groups[:GROUPS_MAX])
    groups = carried_over(configured, s.groups)
    names = {group.name for group in groups}
    return replace(s, groups=groups, changes={name: one for name, one in s.changes.items() if name in names})


def _regrouped(s: Rates, e: m.LrGroupsChanged, _: m.Cause) -> Rates:
    names = {group.name for group in e.groups}
    changes = {name: one for name, one in s.changes.items() if name in names}
    return replace(s, groups=e.groups[:GROUPS_MAX], changes=changes)


def _ordered(s: Rates, e: m.RateOrdered, at: m.Cause) -> Rates:
    return replace(s, given_by=with_giver(s.given_by, e, at))


def _replaced(s: Rates, name: str, group: Group) -> tuple[Group, ...]:
    return tuple(group if one.name == name else one for one in s.groups)


def _changed(s: Rates, e: m.RateChanged, _: m.Cause) -> Rates:
    group = s.group(e.group)
    if group is None:
        return replace(s, given_by=without_giver(s.given_by, e.cause))
    giver = giver_of(s.given_by, e.cause)
    change = RateChange(e.applied_before_step, _used_before(s, e), e.rate, giver.by or "tolariad", giver.reason, e.wall)
    return replace(
        s,
        groups=_replaced(s, e.group, with_order(group, e.rate, e.curve, e.policy, e.function)),
        given_by=without_giver(s.given_by, e.cause),
        changes={**s.changes, e.group: change},
    )


def _used_before(s: Rates, e: m.RateChanged | m.PlateauReached) -> float:
    """Return the rate of the update before the change: of several at one boundary, the one before the first."""
    earlier = s.changes.get(e.group)
    return earlier.before if earlier is not None and earlier.step == e.applied_before_step else e.before


def _aborted(s: Rates, e: m.RateOrderAborted, _: m.Cause) -> Rates:
    return replace(s, given_by=without_giver(s.given_by, e.cause))


def _plateau(s: Rates, e: m.PlateauReached, _: m.Cause) -> Rates:
    if s.group(e.group) is None:
        return s
    why = f"{e.metric} stopped improving in epoch {e.epoch}"
    change = RateChange(e.applied_before_step, _used_before(s, e), e.rate, PLATEAU, why, e.wall)
    return replace(s, changes={**s.changes, e.group: change})


def _epoch_finished(s: Rates, e: m.EpochFinished, _: m.Cause) -> Rates:
    """Apply the epoch's metric, which the event contains, to every adaptive group."""
    if e.metric is None or not s.groups:
        return s
    metric = e.metric
    return replace(s, groups=tuple(after_epoch(group, e.step, metric) for group in s.groups), unjudged=False)


def _unjudged(s: Rates, _: m.PlateauUnjudged, __: m.Cause) -> Rates:
    return replace(s, unjudged=True)


def _restored(s: Rates, e: m.RatesRestored, _: m.Cause) -> Rates:
    return replace(s, groups=e.groups[:GROUPS_MAX], stale=False)


def _rolled_back(s: Rates, _: m.RolledBack, __: m.Cause) -> Rates:
    return replace(s, stale=True)


def _training_started(s: Rates, e: m.TrainingStarted, _: m.Cause) -> Rates:
    return s if s.stale == e.rates_owed else replace(s, stale=e.rates_owed)


APPLY: Final[ApplyTable] = {
    m.RatesRestored: _restored,
    m.RolledBack: _rolled_back,
    m.TrainingStarted: _training_started,
    m.RunStarted: _policy,
    m.ConfigChanged: _policy,
    m.LrGroupsRegistered: _registered,
    m.LrGroupsChanged: _regrouped,
    m.RateOrdered: _ordered,
    m.RateChanged: _changed,
    m.RateOrderAborted: _aborted,
    m.PlateauReached: _plateau,
    m.PlateauUnjudged: _unjudged,
    m.EpochFinished: _epoch_finished,
}
