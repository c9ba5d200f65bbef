"""Try at a start whether an optimizer of the user's own comes back from a checkpoint with all its attributes.

A twin with parameters of one element makes two steps; another one gets its state. Promises: the optimizer itself, and
the random state, stay as they are. An optimizer that cannot be tried is passed over.
"""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any, Final

import torch
from torch.optim import Optimizer

from tolariad.trainer.checkpoints.attributes import KNOWN, OURS, attributes_of, put_back
from tolariad.trainer.data.randomness import preserved_rng

_STEPS: Final = 2


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
    except Exception:  # noqa: BLE001 - whatever the user's class does with these parameters: then nothing is known
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


class _Pickler(pickle.Pickler):
    """Writes the optimizer's parameters by their places: their values come back with the model."""

    def __init__(self, to: io.BytesIO, parameters: list[torch.Tensor]) -> None:
        super().__init__(to)
        self._places = {id(one): number for number, one in enumerate(parameters)}

    def persistent_id(self, held: Any) -> int | None:
        return self._places.get(id(held))


def _contents(optimizer: Optimizer) -> dict[str, bytes]:
    """Return each attribute of the class's own as bytes; what cannot be pickled is passed over."""
    found = {}
    parameters = _parameters(optimizer)
    for name, held in vars(optimizer).items():
        if name in KNOWN or isinstance(held, Optimizer):
            continue
        to = io.BytesIO()
        try:
            _Pickler(to, parameters).dump(held)
        except Exception:  # noqa: BLE001, S112 - a lambda, a lock: not what changes in a step
            continue
        found[name] = to.getvalue()
    return found
