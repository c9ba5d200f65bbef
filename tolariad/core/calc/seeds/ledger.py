"""The entries of seeds in the architecture ledger: a germination adds a module to the model, a cull removes it.

Promises: daemon and trainer make the same entry of the same move, byte for byte.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from tolariad.core.calc.seeds.stages import Stage

PREFIX: Final = "seed."
GERMINATE: Final = f"{PREFIX}germinate"
REMOVE: Final = f"{PREFIX}remove"


class ShapeChange(NamedTuple):
    """An entry of the ledger: its name, and its arguments as a JSON object with sorted keys."""

    name: str
    arguments: str


def germinated(
    slot: str,
    germination: int,
    *,
    blueprint: str,
    parameters: Mapping[str, float],
    example: tuple[int, ...] = (),
    dtype: str = "",
    warmup_steps: int | None = None,
) -> ShapeChange:
    """Return the entry of a germination. `example` and `dtype` are the shape and type of the slot's input.

    `warmup_steps` is the length of the seed's warm-up. With None, as in older versions, the entry does not have it.
    """
    arguments: dict[str, Any] = {
        "blueprint": blueprint,
        "dtype": dtype,
        "example": example,
        "number": germination,
        "parameters": dict(parameters),
        "slot": slot,
        **({} if warmup_steps is None else {"warmup_steps": warmup_steps}),
    }
    return ShapeChange(GERMINATE, json.dumps(arguments, sort_keys=True))


def removed(slot: str, germination: int) -> ShapeChange:
    """Return the entry of a cull."""
    return ShapeChange(REMOVE, json.dumps({"number": germination, "slot": slot}, sort_keys=True))


def is_of_seed(name: str) -> bool:
    """Return whether an entry of the ledger is a seed's. Orders of a script repeat it, not the hooks of the task."""
    return name.startswith(PREFIX)


def changes_shape(stage: Stage) -> bool:
    """Return whether a move to this stage changes the model's shape."""
    return stage in (Stage.GERMINATED, Stage.CULLED)
