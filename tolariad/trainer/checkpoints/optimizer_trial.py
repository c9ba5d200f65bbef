"""Try at a start whether an optimizer of the user's own comes back from a checkpoint with all its attributes.

A twin with parameters of one element makes two steps; another one gets its state. Promises: the optimizer itself, and
the random state, stay as they are. An optimizer that cannot be tried is passed over.
"""

from __future__ import annotations

import copy
import logging
from collections import deque
from typing import Any, Final

import torch
from torch.optim import Optimizer

from tolariad.trainer.checkpoints.attributes import KNOWN, OURS, attributes_of, put_back
from tolariad.trainer.checkpoints.tensors import raw_bytes
from tolariad.trainer.data.generators import is_generator, state_of
from tolariad.trainer.data.randomness import preserved_rng

_log: Final = logging.getLogger(__name__)
_STEPS: Final = 2
_DEPTH: Final = 6


def lost(name: str, optimizer: Optimizer) -> list[str]:
    """Return a sentence for each attribute that changes in a step and that a resume would begin anew."""
    kind = type(optimizer)
    if kind.__module__.partition(".")[0] in OURS or vars(optimizer).keys() <= KNOWN:
        return []
    try:
        with preserved_rng():
            before, trained, resumed = (_twin(optimizer) for _ in range(3))
            for _ in range(_STEPS):
                _step(trained)
            resumed.load_state_dict(copy.deepcopy(trained.state_dict()))
            saved = attributes_of(trained)
            put_back(resumed, copy.deepcopy(saved))
            was, now, back = (_contents(one) for one in (before, trained, resumed))
    except Exception as error:  # noqa: BLE001 - whatever the user's class does with these parameters
        _log.debug("the optimizer %s could not be tried: %r", name, error)
        return []
    return [
        f"the attribute {one} of the optimizer {name} ({kind.__name__}) changes in a step and is in no checkpoint: a "
        "resume begins it anew. Keep a number, a tensor, a list or a dict there, or let "
        f"{kind.__name__}.state_dict() have it"
        for one, content in now.items()
        if one not in saved and was.get(one) != content != back.get(one)
    ]


def _twin(optimizer: Optimizer) -> Optimizer:
    """Return an optimizer with the same attributes and small parameters of its own."""
    memo: dict[int, Any] = {}
    for parameter in _parameters(optimizer):
        memo[id(parameter)] = torch.nn.Parameter(torch.full((1, 1), 0.5))
    twin = object.__new__(type(optimizer))
    plain = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])
    vars(twin).update(vars(plain))
    for name, held in vars(optimizer).items():
        if name in ("defaults", "state", "param_groups") or name not in KNOWN:
            vars(twin)[name] = copy.deepcopy(held, memo)
    return twin


def _parameters(optimizer: Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _step(optimizer: Optimizer) -> None:
    parameters = _parameters(optimizer)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = sum((one.square().sum() for one in parameters), torch.zeros(()))
        loss.backward()
        return loss

    closure()
    step: Any = optimizer.step
    try:
        step(closure)
    except TypeError:
        step()


def _contents(optimizer: Optimizer) -> dict[str, Any]:
    """Return what each attribute of the class's own contains, as plain values."""
    places = {id(one): number for number, one in enumerate(_parameters(optimizer))}
    held = {name: one for name, one in vars(optimizer).items() if name not in KNOWN and not isinstance(one, Optimizer)}
    return {name: _content(one, places, _DEPTH) for name, one in held.items()}


def _content(held: Any, places: dict[int, int], depth: int) -> Any:
    """Return plain values that are equal if the contents are. Parameters are places: they come back with the model."""
    if id(held) in places:
        return places[id(held)]
    if isinstance(held, torch.Tensor):
        return raw_bytes(held)
    if is_generator(held):
        return repr(state_of(held))
    if isinstance(held, int | float | str | bytes | None):
        return held
    if not depth:
        return None
    if isinstance(held, dict):
        return [(repr(key), _content(one, places, depth - 1)) for key, one in held.items()]
    if isinstance(held, list | tuple | deque):
        return [_content(one, places, depth - 1) for one in held]
    # A function, a module, a lock: not what changes in a step.
    return [(name, _content(one, places, depth - 1)) for name, one in getattr(held, "__dict__", {}).items()]
