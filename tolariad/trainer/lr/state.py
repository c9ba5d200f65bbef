"""The groups' part of a checkpoint: the changes that orders and plateaus made, by group id, as plain data.

Promises: a group that the checkpoint does not contain keeps its configured schedule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import convert, to_builtins

from tolariad.core.calc.learning_rate.group import Group, Plateau, Scale
from tolariad.core.calc.learning_rate.schedule import LRPolicy, Schedule
from tolariad.core.calc.learning_rate.tabulated import Tabulated


def groups_state(groups: Sequence[Group]) -> dict[str, dict[str, Any]]:
    """Return the orders and plateaus in force, by group id, and the schedules of groups added during training.

    Groups without any of these are left out.
    """
    return {group.name: state for group in groups if (state := _state(group))}


def _state(group: Group) -> dict[str, Any]:
    # A configured group begins at step 0, and its schedule follows from the configuration. A group that was added later
    # has the schedule that was made then.
    state: dict[str, Any] = {"schedule": to_builtins(group.schedule)} if group.schedule.start else {}
    if group.ordered is not None:
        state["ordered"] = group.ordered.value
    if group.function is not None:
        state["function"] = to_builtins(group.function)
    if group.scale is not None:
        state["scale"] = [group.scale.value, group.scale.curve]
    if group.plateau is not None:
        state["plateau"] = [group.plateau.rate, group.plateau.best, group.plateau.bad, group.plateau.cooling]
    return state


def groups_from(groups: Sequence[Group], states: Mapping[str, Mapping[str, Any]]) -> tuple[Group, ...]:
    """Return the groups with what `groups_state` saved of them. Raises ValueError for an unknown policy or schedule."""
    return tuple(_with(group, states.get(group.name, {})) for group in groups)


def _with(group: Group, state: Mapping[str, Any]) -> Group:
    return Group(
        group.name,
        convert(state["schedule"], Schedule) if "schedule" in state else group.schedule,
        ordered=LRPolicy(state["ordered"]) if "ordered" in state else None,
        scale=Scale(*state["scale"]) if "scale" in state else None,
        plateau=Plateau(*state["plateau"]) if "plateau" in state else None,
        function=convert(state["function"], Tabulated) if "function" in state else None,
    )
