"""A rebuild prepared aside: which tensor takes which place with which state, and whether it may be committed.

Promises: making and checking a plan changes nothing; the state of a parameter that stays the same object is taken over
as it is, every other one is a copy; a plan that passed `check` holds identities bit for bit, every copied unit, and no
number that is not finite.
It must not know: rates, events, who commits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from tolariad.core.rates.optimizer_words import RebuildCounts
from tolariad.trainer.optim.kinds import STEP, Kind, kinds_of
from tolariad.trainer.optim.matching import match
from tolariad.trainer.optim.transform import carried

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch.nn import Parameter
    from torch.optim import Optimizer

    from tolariad.trainer.optim.mapping import ParameterMapping


class RebuildRefused(ValueError):
    """A rebuild that may not be committed; nothing has changed."""


@dataclass(frozen=True)
class Place:
    """A parameter that gets another's place in its group. `state` None: a fresh one."""

    mapping: ParameterMapping
    old: Parameter
    new: Parameter
    state: dict[str, Any] | None


@dataclass(frozen=True)
class Plan:
    """What a rebuild comes to. `groups`: for each group of the old optimizer its places, in order. `unknown`: entries of
    the state that the table of kinds does not have; they are left behind.
    """

    groups: list[list[Place]]
    added: list[tuple[str, Parameter]]
    dropped: list[str]
    unknown: list[str] = field(default_factory=list)

    def counts(self) -> RebuildCounts:
        """How many parameters went which way."""
        places = [place for group in self.groups for place in group]
        same = [place for place in places if place.mapping.mapping_type == "identity"]
        reset = [place for place in places if not place.mapping.carries]
        return RebuildCounts(
            carried=len(same),
            transformed=len(places) - len(same) - len(reset),
            reset=len(reset),
            added=len(self.added),
            dropped=len(self.dropped),
            forgotten=len(self.unknown),
        )


def held_names(optimizer: Optimizer, model_names: Mapping[str, Parameter]) -> dict[str, Parameter]:
    """The optimizer's parameters by their name in a model. Raises RebuildRefused where the model lacks one."""
    names = {id(parameter): name for name, parameter in model_names.items()}
    held: dict[str, Parameter] = {}
    for index, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            if id(parameter) not in names:
                raise RebuildRefused(
                    f"group {index} of the optimizer holds a parameter of shape {tuple(parameter.shape)} that is not the "
                    "old model's: without a name it cannot be followed"
                )
            held[names[id(parameter)]] = parameter
    return held


def prepare(
    optimizer: Optimizer,
    old: Mapping[str, Parameter],
    new: Mapping[str, Parameter],
    mappings: Sequence[ParameterMapping],
) -> Plan:
    """A plan for the optimizer of `old` (its parameters by name) to become one of `new`.

    Raises ValueError (RebuildRefused, AmbiguousMapping) for what cannot be, TypeError for an optimizer it does not know.
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
            Place(mapping, parameter, wanted[mapping.new_id], _state(optimizer, parameter, wanted, mapping, unknown))
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
    wanted: Mapping[str, Parameter],
    mapping: ParameterMapping,
    unknown: list[str],
) -> dict[str, Any] | None:
    """The new parameter's state; None where there is none to carry."""
    before, new = optimizer.state.get(old), wanted[mapping.new_id]
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
    """Raises RebuildRefused where the plan does not keep what this module promises."""
    for place in (place for group in plan.groups for place in group):
        before = optimizer.state.get(place.old) or {}
        for key, value in (place.state or {}).items():
            if key in kinds and isinstance(value, torch.Tensor):
                _check_entry(place, key, before[key], value)


def _check_entry(place: Place, key: str, before: torch.Tensor, value: torch.Tensor) -> None:
    if value.shape != place.new.shape:
        raise RebuildRefused(f"{place.mapping}: {key} has shape {tuple(value.shape)}")
    if value is before:
        return
    if place.mapping.mapping_type == "identity":
        if value.dtype == before.dtype and not _same_bits(value, before.to(value.device)):
            raise RebuildRefused(f"{place.mapping}: {key} changed on the way")
    # A finite sum has finite terms, and costs one reading; a sum may overflow where its terms do not.
    elif not math.isfinite(value.sum().item()) and not torch.isfinite(value).all():
        raise RebuildRefused(f"{place.mapping}: {key} holds numbers that are not finite")


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """NaN equals NaN here: what the state is, is not a rebuild's business."""
    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    return torch.equal(a.contiguous().view(whole), b.contiguous().view(whole))


def fresh_state(optimizer: Optimizer, parameter: Parameter) -> dict[str, Any] | None:
    """What a parameter needs that joins later, None where the optimizer makes it at the first step.

    Adagrad makes its state when it is constructed, and a parameter added afterwards has none.
    """
    if not isinstance(optimizer, torch.optim.Adagrad):
        return None
    start = optimizer.defaults["initial_accumulator_value"]
    return {STEP: torch.tensor(0.0), "sum": torch.full_like(parameter, start, memory_format=torch.preserve_format)}
