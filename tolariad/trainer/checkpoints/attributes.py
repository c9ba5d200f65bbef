"""What an optimizer of the user's own keeps beside `state` and `param_groups`: attributes, optimizers that it wraps.

torch's `state_dict` leaves them out, so a resume would begin them anew. Here they are a part of the optimizer's state:
numbers, text, tensors, lists and dicts of these, generators, and whole optimizers in an attribute.

Promises: classes of torch and of tolariad, and classes with a `state_dict` of their own, are left alone.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch.optim import Optimizer

from tolariad.trainer.checkpoints.tensors import place_of
from tolariad.trainer.checkpoints.tree import NotCapturable, encode_tree
from tolariad.trainer.data.generators import is_generator, restore, state_of
from tolariad.trainer.lr.guard import GUARD_ATTRIBUTE

_log: Final = logging.getLogger(__name__)
_OTHER_KIND: Final = (
    "the checkpoint was written with the optimizer %s, and the optimizer is %s now. To go on as before, make the one "
    "that the run had"
)
OURS: Final = ("torch", "tolariad")
# The attributes of every optimizer, and those that torch's schedulers and the rate controller add.
KNOWN: Final = frozenset(
    (*vars(torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])), GUARD_ATTRIBUTE, "_opt_called", "step")
)
_GENERATOR: Final = "tolaria.generator"


def attributes_of(optimizer: Optimizer) -> dict[str, Any]:
    """Return the attributes that are plain data, by name; of generators the state."""
    own = {name: _as_data(held) for name, held in _own(optimizer)}
    # An optimizer of torch's has none: its parameters need no look, which may come before every update.
    parameters = {place_of(one) for group in optimizer.param_groups for one in group["params"]} if own else set()
    return {name: value for name, value in own.items() if _is_data(value, name, parameters)}


def wrapped_by(optimizer: Optimizer) -> dict[str, Optimizer]:
    """Return the optimizers that this one has as attributes, by name."""
    return {name: held for name, held in _own(optimizer) if isinstance(held, Optimizer)}


def put_back(optimizer: Optimizer, attributes: dict[str, Any]) -> None:
    """Give the optimizer the attributes that `attributes_of` returned. Generators change in place."""
    for name, value in attributes.items():
        if type(value) is tuple and value[:1] == (_GENERATOR,):
            restore(getattr(optimizer, name, None), value[1])
        else:
            setattr(optimizer, name, value)


def is_of_other_options(optimizer: Optimizer, tree: Mapping[str, Any]) -> bool:
    """Return whether a saved state means nothing to the optimizer, which then begins anew. Say if the kind differs."""
    was, kind = tree.get("kind", ""), type(optimizer).__qualname__
    if was in ("", kind):
        return False
    _log.warning(_OTHER_KIND, was, kind)
    here, held = optimizer.param_groups[0].keys(), tree["param_groups"][0].keys()
    return bool(here - held and held - here)


def without_parameters(
    state: Mapping[Any, Any], parameters: Sequence[torch.Tensor]
) -> tuple[dict[Any, Any], list[tuple[Any, str, int]]]:
    """Return a state without the values that are parameters themselves, and of these key, name, place of the parameter.

    An optimizer that puts a kept copy in the place of a parameter (`p.data = old`) leaves both in the same memory.
    """
    places = {place_of(one): number for number, one in enumerate(parameters)}
    shared = [
        (key, name, places[place_of(value)])
        for key, held in state.items()
        if isinstance(held, dict)
        for name, value in held.items()
        if isinstance(value, torch.Tensor) and value.numel() and place_of(value) in places
    ]
    if not shared:
        return dict(state), []
    left_out = {(key, name) for key, name, _ in shared}
    without = {
        key: {name: value for name, value in held.items() if (key, name) not in left_out}
        if isinstance(held, dict)
        else held
        for key, held in state.items()
    }
    return without, shared


def _own(optimizer: Optimizer) -> Iterator[tuple[str, Any]]:
    kind = type(optimizer)
    if kind.__module__.partition(".")[0] in OURS or kind.state_dict is not Optimizer.state_dict:
        return iter(())
    return ((name, held) for name, held in vars(optimizer).items() if name not in KNOWN)


def _as_data(held: Any) -> Any:
    return (_GENERATOR, state_of(held)) if is_generator(held) else held


def _is_data(value: Any, name: str, parameters: set[tuple[object, ...]]) -> bool:
    """Return whether a checkpoint can hold the value, and it is none of the parameters."""
    try:
        tensors = encode_tree(value, name)[1]
    except NotCapturable:
        return False
    return parameters.isdisjoint(map(place_of, tensors.values()))
