"""The table of learning rates that clients get: one row for each group, made from folded state."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from tolariad.core.learning_rate.group import rate_of
from tolariad.core.plain import rfc3339
from tolariad.core.rates.words import SetRate

if TYPE_CHECKING:
    from tolariad.core.state import RunState


class RateGroup(msgspec.Struct, frozen=True, kw_only=True):
    """One parameter group. `now` is the rate of the last update (None before the first), `next` of the one to come.

    `waiting` counts the pending orders. The `changed_*` fields describe the newest order or plateau, if there was one.
    """

    name: str
    policy: str
    base: float
    now: float | None
    next: float
    waiting: int
    changed_step: int | None = None
    changed_rate: float | None = None
    changed_by: str | None = None
    changed_why: str | None = None
    changed_time: str | None = None


class RateTable(msgspec.Struct, frozen=True, kw_only=True):
    """All groups, in the order of the optimizer's. `step` is the last applied one."""

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
        groups=tuple(_row(state, index, step) for index in range(len(state.rates.groups))),
    )


def _row(state: RunState, index: int, step: int) -> RateGroup:
    rates, waiting = state.rates, state.boundary.of_kind(SetRate)
    group = rates.groups[index]
    change = rates.changes.get(group.name)
    now = rate_of(group, step) if step else None
    if change is not None and step and change.step == step + 1:
        now = change.before
    return RateGroup(
        name=group.name,
        policy=group.policy.value,
        base=group.schedule.base_lr,
        now=now,
        next=rate_of(group, step + 1),
        waiting=sum(order.group == group.name for _, order in waiting),
        changed_step=change.step if change else None,
        changed_rate=change.rate if change else None,
        changed_by=change.by if change else None,
        changed_why=change.reason if change else None,
        changed_time=rfc3339(change.wall) if change else None,
    )
