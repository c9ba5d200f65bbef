"""The plan of a rebuild: which parameter takes which place with which state, and whether it may be committed.

Promises: preparing and checking a plan changes nothing. The state of a parameter that stays the same object is used as
it is; any other state is a copy. In a plan that passed `check`, identities are equal bit for bit, every copied unit is
there, and all numbers are finite.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from tolariad.core import messages as m
from tolariad.trainer.checkpoints.tensors import same_bits
from tolariad.trainer.optim.mapping import match
from tolariad.trainer.optim.transform import STEP, Kind, carried, kinds_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch.nn import Parameter
    from torch.optim import Optimizer

    from tolariad.trainer.optim.mapping import ParameterMapping


class RebuildRefused(ValueError):
    """A rebuild cannot be committed. Nothing has changed."""


@dataclass(frozen=True)
class Replacement:
    """A parameter that replaces another one in its group. `state` None: it starts with a new state."""

    mapping: ParameterMapping
    old: Parameter
    new: Parameter
    state: dict[str, Any] | None


@dataclass(frozen=True)
class Plan:
    """A prepared rebuild.

    * `groups`: for each group of the old optimizer its replacements, in order.
    * `added`, `dropped`: the parameters that are new, and the names of those that went.
    * `unknown`: entries of the state that the table of kinds does not have. They are not carried over.
    """

    groups: list[list[Replacement]]
    added: list[tuple[str, Parameter]]
    dropped: list[str]
    unknown: list[str] = field(default_factory=list)

    def counts(self) -> m.RebuildCounts:
        """Return the number of parameters for each type of mapping."""
        places = [place for group in self.groups for place in group]
        same = [place for place in places if place.mapping.mapping_type == "identity"]
        reset = [place for place in places if not place.mapping.carries]
        return m.RebuildCounts(
            carried=len(same),
            transformed=len(places) - len(same) - len(reset),
            reset=len(reset),
            added=len(self.added),
            dropped=len(self.dropped),
            forgotten=len(self.unknown),
        )


def prepare(
    optimizer: Optimizer,
    old: Mapping[str, Parameter],
    new: Mapping[str, Parameter],
    mappings: Sequence[ParameterMapping],
) -> Plan:
    """Return a plan that turns the optimizer of `old` (parameters by name) into one of `new`.

    Raises ValueError (RebuildRefused, AmbiguousMapping) if that is impossible, TypeError for an unknown optimizer.
    """
    kinds = kinds_of(optimizer)
    wanted = {name: parameter for name, parameter in new.items() if parameter.requires_grad or name in old}
    found = match(old, wanted, mappings)
    by_old: dict[str, list[ParameterMapping]] = {}
    for mapping in found:
        by_old.setdefault(mapping.old_id, []).append(mapping)
    names = {id(parameter): name for name, parameter in old.items()}
    unknown: list[str] = []
    groups = [
        [
            Replacement(
                mapping,
                parameter,
                wanted[mapping.new_id],
                _state(optimizer, parameter, wanted[mapping.new_id], mapping, unknown),
            )
            for parameter in group["params"]
            for mapping in by_old.get(names[id(parameter)], ())
        ]
        for group in optimizer.param_groups
    ]
    placed = {mapping.new_id for mapping in found}
    added = [(name, parameter) for name, parameter in wanted.items() if name not in placed]
    dropped = [name for name in old if name not in by_old]
    plan = Plan(groups, added, dropped, unknown)
    check(plan, optimizer, kinds)
    return plan


def _state(
    optimizer: Optimizer,
    old: Parameter,
    new: Parameter,
    mapping: ParameterMapping,
    unknown: list[str],
) -> dict[str, Any] | None:
    """Return the new parameter's state; None if there is none to carry over."""
    before = optimizer.state.get(old)
    if not before or not mapping.carries:
        return None
    if new is old and mapping.mapping_type == "identity":
        return dict(before)
    kinds = kinds_of(optimizer)
    state: dict[str, Any] = {}
    for key, value in before.items():
        if key in kinds and isinstance(value, torch.Tensor):
            moved = carried(value, mapping, kinds[key])
            state[key] = moved.to(device=new.device, dtype=new.dtype if value.dtype == old.dtype else value.dtype)
        elif key == STEP and isinstance(value, torch.Tensor):
            state[key] = value.clone() if value.device.type == "cpu" else value.to(new.device, copy=True)
        elif value is None or key == STEP:
            state[key] = value
        else:
            unknown.append(f"{mapping.new_id}: {key}")
    return state


def check(plan: Plan, optimizer: Optimizer, kinds: Mapping[str, Kind]) -> None:
    """Raise RebuildRefused if the plan breaks a promise of this module."""
    for place in (place for group in plan.groups for place in group):
        before = optimizer.state.get(place.old) or {}
        for key, value in (place.state or {}).items():
            if key in kinds and isinstance(value, torch.Tensor):
                _check_entry(place, key, before[key], value)


def _check_entry(place: Replacement, key: str, before: torch.Tensor, value: torch.Tensor) -> None:
    if value.shape != place.new.shape:
        raise RebuildRefused(f"{place.mapping}: {key} has shape {tuple(value.shape)}")
    if value is before:
        return
    if place.mapping.mapping_type == "identity":
        if value.dtype == before.dtype and not same_bits(value, before.to(value.device)):
            raise RebuildRefused(f"{place.mapping}: {key} changed while it was copied")
    # A finite sum has finite terms, and needs a single pass. An infinite sum may have finite terms: then check each.
    elif not math.isfinite(value.sum().item()) and not torch.isfinite(value).all():
        raise RebuildRefused(f"{place.mapping}: {key} holds numbers that are not finite")


def fresh_state(optimizer: Optimizer, parameter: Parameter) -> dict[str, Any] | None:
    """Return the initial state of a parameter that is added later; None if the optimizer creates it at the first step.

    Adagrad creates its state in the constructor, so a parameter that is added later has none.
    """
    if not isinstance(optimizer, torch.optim.Adagrad):
        return None
    start = optimizer.defaults["initial_accumulator_value"]
    return {STEP: torch.tensor(0.0), "sum": torch.full_like(parameter, start, memory_format=torch.preserve_format)}
