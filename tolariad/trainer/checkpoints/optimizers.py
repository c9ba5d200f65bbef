"""The state of an optimizer as a tree for a checkpoint, and back.

Promises: a restored optimizer has the bits, dtypes and layout of the captured one, in its live tensors if they fit.
What its state shares is shared again, and what is apart stays apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tolariad.trainer.checkpoints import lanes
from tolariad.trainer.checkpoints.attributes import (
    attributes_of,
    is_of_other_options,
    put_back,
    without_parameters,
    wrapped_by,
)
from tolariad.trainer.checkpoints.files import OF_OWNER
from tolariad.trainer.checkpoints.tensors import overlap, place_of
from tolariad.trainer.checkpoints.tree import Given, NotCapturable, Stored, encode_tree, made

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from tolariad.trainer.optim.owners import Owner


def optimizer_tree(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the optimizer's state_dict, with its kind and the qualified names of its parameters in their order.

    `more` holds entries that a subclass adds to the two that every state_dict has. `attributes` and `wrapped`:
    `checkpoints.attributes`. `shared` names the values of the state that are parameters, in the same memory.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    held = optimizer.state_dict()
    state, shared = without_parameters(held["state"], parameters)
    more = {key: value for key, value in held.items() if key not in ("state", "param_groups")}
    own = attributes_of(optimizer)
    within = {name: optimizer_tree(model, one) for name, one in wrapped_by(optimizer).items()}
    return {
        "kind": type(optimizer).__qualname__,
        "names": [names.get(id(one), "") for one in parameters],
        "state": state,
        "param_groups": list(held["param_groups"]),
        **({"more": more} if more else {}),
        **({"attributes": own} if own else {}),
        **({"wrapped": within} if within else {}),
        **({"shared": shared} if shared else {}),
    }


def encoded(model: nn.Module, owners: Sequence[Owner]) -> tuple[list[tuple[str, bytes]], dict[str, torch.Tensor]]:
    """Return the state of each owner's optimizer as msgpack, by name, and the tensors of all of them."""
    found, tensors = [], dict[str, torch.Tensor]()
    for name, held in owners:
        encoded, more = encode_tree(optimizer_tree(model, held), f"{OF_OWNER}{name}")
        found.append((name, encoded))
        tensors |= more
    return found, tensors


def check_apart(optimizer: dict[str, torch.Tensor], model: dict[str, torch.Tensor]) -> None:
    """Raise NotCapturable if the optimizer's state shares memory with a parameter or with itself.

    After a restore they would be separate tensors: a change of one would no longer change the other.
    """
    found = overlap(optimizer, model)
    if found is not None:
        one, other = found
        raise NotCapturable(one, f"shares memory with {other}; keep a copy, or keep both in one tensor")


def try_a_step(optimizer: torch.optim.Optimizer) -> None:
    """Encode the state of an optimizer of the same class and settings after one step with a parameter of one element.

    Tests cover torch's own classes. Another class may keep anything in its state, which is known only after a step.
    """
    if type(optimizer).__module__.split(".")[0] == "torch":
        return
    probe = torch.nn.Parameter(torch.ones(1, 1))
    probe.grad = torch.zeros(1, 1)
    try:
        options = {
            key: value for key, value in optimizer.param_groups[0].items() if key not in {"params", "param_names"}
        }
        kind: Any = type(optimizer)
        trial = kind([{"params": [probe], **options}])
        trial.step()
    except (TypeError, ValueError, RuntimeError, AssertionError):
        # The constructor takes other arguments. The first checkpoint with a state will show whether it can be written.
        return
    held = encode_tree(without_parameters(trial.state_dict()["state"], [probe])[0], "optimizer")[1]
    check_apart(held, {"its parameter": probe})


def restore_optimizer(
    optimizer: torch.optim.Optimizer, tree: dict[str, Any], device: torch.device, copy: lanes.Copy | None = None
) -> None:
    """Restore the optimizer's state in its original dtypes, and in its live tensors if they fit.

    Optimizer.load_state_dict adopts the given tensors and casts them to their parameter's dtype. It is called for the
    sake of subclasses; afterwards the optimizer's own tensors replace the adopted ones.
    """
    if is_of_other_options(optimizer, tree):
        return
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    # What it wraps keeps its groups: they may be those of this one, which the rate controller holds.
    within = {name: (one, one.param_groups, list(one.param_groups)) for name, one in wrapped_by(optimizer).items()}
    target = _Target(device)
    state = {}
    for key, stored in tree["state"].items():
        live = optimizer.state.get(parameters[key] if isinstance(key, int) else key)
        state[key] = target.into(live, stored)
    more, groups = (made(tree.get(name, {}), device, target.given) for name in ("more", "param_groups"))
    optimizer.load_state_dict({**more, "state": _castable(state), "param_groups": groups})
    for key, value in state.items():
        optimizer.state[parameters[key] if isinstance(key, int) else key] = value
    (copy or lanes.copy)(target.pairs)
    for key, name, number in made(tree.get("shared", []), device):
        optimizer.state[parameters[key]][name] = parameters[number].detach()
    put_back(optimizer, made(tree.get("attributes", {}), device))
    for name, (one, groups, content) in within.items():
        if name in tree.get("wrapped", {}):
            restore_optimizer(one, tree["wrapped"][name], device, copy)
            for group, restored in zip(content, one.param_groups, strict=True):
                group.update((key, value) for key, value in restored.items() if key != "params")
        groups[:] = content
        one.param_groups = groups


def _castable(value: Any) -> Any:
    """Return `value` in a form that torch can walk through: it takes an array for a list and fails to rebuild it."""
    match value:
        case np.ndarray():
            return value.tolist()
        case dict():
            return {key: _castable(item) for key, item in value.items()}
        case list() | tuple():
            return type(value)(map(_castable, value))
        case _:
            return value


class _Target:
    """Maps stored values to the optimizer's own. Afterwards `pairs` lists which tensor is to be copied into which.

    A tensor that was stored for several places stays one tensor; separate ones stay separate, even if the live
    optimizer shares them.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._taken: set[tuple[object, ...]] = set()
        self.given: Given = {}
        self.pairs: list[tuple[torch.Tensor, torch.Tensor]] = []

    def into(self, live: Any, stored: Any) -> Any:
        """Return `live` if it fits and is not used for another stored value; else a new value."""
        if isinstance(stored, Stored):
            return self._tensor(live, stored)
        if isinstance(stored, dict):
            held = live if isinstance(live, dict) else {}
            return type(stored)((key, self.into(held.get(key), item)) for key, item in stored.items())
        return made(stored, self._device, self.given)

    def _tensor(self, live: Any, stored: Stored) -> torch.Tensor:
        if id(stored) not in self.given and stored.fits(live, self._device) and place_of(live) not in self._taken:
            self._taken.add(place_of(live))
            self.pairs.append((live, stored.tensor))
            self.given[id(stored)] = live
        tensor: torch.Tensor = made(stored, self._device, self.given)
        return tensor
