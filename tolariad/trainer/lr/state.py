"""The groups' part of a checkpoint: the changes that orders and plateaus made, by group id, as plain data.

Promises: a group that the checkpoint does not contain keeps its configured schedule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tolariad.core.learning_rate import Group, LRPolicy, Plateau, Scale


def groups_state(groups: Sequence[Group]) -> dict[str, dict[str, Any]]:
    """Return the orders and plateaus in force, by group id. Groups without any are left out."""
    return {group.name: state for group in groups if (state := _state(group))}


def _state(group: Group) -> dict[str, Any]:
    state: dict[str, Any] = {}
    if group.ordered is not None:
        state["ordered"] = group.ordered.value
    if group.scale is not None:
        state["scale"] = [group.scale.value, group.scale.curve]
    if group.plateau is not None:
        state["plateau"] = [group.plateau.rate, group.plateau.best, group.plateau.bad, group.plateau.cooling]
    return state


def groups_from(groups: Sequence[Group], states: Mapping[str, Mapping[str, Any]]) -> tuple[Group, ...]:
    """Return the groups with the orders and plateaus of `groups_state`. Raises ValueError for an unknown policy."""
    return tuple(_with(group, states.get(group.name, {})) for group in groups)


def _with(group: Group, state: Mapping[str, Any]) -> Group:
    return Group(
        group.name,
        group.schedule,
        ordered=LRPolicy(state["ordered"]) if "ordered" in state else None,
        scale=Scale(*state["scale"]) if "scale" in state else None,
        plateau=Plateau(*state["plateau"]) if "plateau" in state else None,
    )
