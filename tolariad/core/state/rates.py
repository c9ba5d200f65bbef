"""The learning rates as recorded in the journal: slice, apply table.

Invariant: the kernel and the trainer apply the same functions to the groups in the same order. So the digests of their
rates are equal, bit for bit. `core.state.boundary` holds the waiting orders, of every kind.
"""

from typing import Annotated, Final, Protocol

import msgspec
from msgspec.structs import replace

from tolariad.core import messages as m
from tolariad.core.calc.learning_rate.group import Group, after_epoch, carried_over, with_order
from tolariad.core.state.fates import CONFIGURATION, set_back
from tolariad.core.state.fold import ApplyTable, by_order

GROUPS_MAX: Final = 512


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


class BranchRates(msgspec.Struct, frozen=True, omit_defaults=True):
    """What of the rates belongs to a branch: why each is what it is; whether an epoch without a metric was recorded.

    The rates themselves are in the checkpoint.
    """

    changes: dict[str, RateChange] = {}
    unjudged: bool = False


_IN_THE_CHECKPOINT: Final = set_back("in the checkpoint: the trainer that stands at the target reports them")


class Rates(BranchRates, frozen=True, omit_defaults=False):
    """Slice of RunState. `changes`: the newest of each group.

    `stale`: after a rollback the groups are still those from after its target, until the trainer at the target reports
    its rates. `unjudged`: the newest epoch had no metric for its plateaus, and that was recorded.
    """

    groups: Annotated[tuple[Group, ...], _IN_THE_CHECKPOINT] = ()
    max_order_factor: Annotated[float, CONFIGURATION] = 10.0
    stale: Annotated[bool, _IN_THE_CHECKPOINT] = False

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


def _replaced(s: Rates, name: str, group: Group) -> tuple[Group, ...]:
    return tuple(group if one.name == name else one for one in s.groups)


def _changed(s: Rates, order: m.SetRate, e: m.OrderActed) -> Rates:
    group = s.group(order.group)
    if group is None:
        return s
    before = _used_before(s, order.group, e.applied_before_step, e.outcome_as(m.RateSet).before)
    change = RateChange(e.applied_before_step, before, order.value, e.by or "tolariad", e.reason, e.wall)
    ordered = with_order(group, order.value, order.curve or 0.0, order.policy, order.function)
    groups = _replaced(s, order.group, ordered)
    return replace(s, groups=groups, changes={**s.changes, order.group: change})


def _used_before(s: Rates, group: str, applied_before_step: int, before: float) -> float:
    """Return the rate of the update before the change: of several at one boundary, the one before the first."""
    earlier = s.changes.get(group)
    return earlier.before if earlier is not None and earlier.step == applied_before_step else before


def _plateau(s: Rates, e: m.PlateauReached, _: m.Cause) -> Rates:
    if s.group(e.group) is None:
        return s
    before = _used_before(s, e.group, e.applied_before_step, e.before)
    why = f"{e.metric} stopped improving in epoch {e.epoch}"
    change = RateChange(e.applied_before_step, before, e.rate, PLATEAU, why, e.wall)
    return replace(s, changes={**s.changes, e.group: change})


def _epoch_finished(s: Rates, e: m.EpochFinished, _: m.Cause) -> Rates:
    """Apply the epoch's metric, which the event contains, to every adaptive group."""
    if e.metric is None or not s.groups:
        return s
    metric = e.metric
    return replace(s, groups=tuple(after_epoch(group, e.step, metric) for group in s.groups), unjudged=False)


def _validated(s: Rates, e: m.ValidationFinished, _: m.Cause) -> Rates:
    """Apply the loss of a validation within an epoch. That of an epoch's end comes with EpochFinished."""
    loss = e.metrics.get("loss")
    if not e.batch or loss is None or not s.groups:
        return s
    return replace(s, groups=tuple(after_epoch(group, e.step, loss) for group in s.groups), unjudged=False)


def _unjudged(s: Rates, _: m.PlateauUnjudged, __: m.Cause) -> Rates:
    return replace(s, unjudged=True)


def _restored(s: Rates, e: m.RatesRestored, _: m.Cause) -> Rates:
    return replace(s, groups=e.groups[:GROUPS_MAX], stale=False)


def _training_started(s: Rates, e: m.TrainingStarted, _: m.Cause) -> Rates:
    return s if s.stale == e.rates_owed else replace(s, stale=e.rates_owed)


APPLY: Final[ApplyTable] = {
    m.RatesRestored: _restored,
    m.TrainingStarted: _training_started,
    m.RunStarted: _policy,
    m.ConfigChanged: _policy,
    m.LrGroupsRegistered: _registered,
    m.LrGroupsChanged: _regrouped,
    m.OrderActed: by_order({m.SetRate: _changed}),
    m.PlateauReached: _plateau,
    m.PlateauUnjudged: _unjudged,
    m.EpochFinished: _epoch_finished,
    m.ValidationFinished: _validated,
}
