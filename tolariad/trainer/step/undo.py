"""Undo the updates of one step: a copy of what the optimizers change, kept from before their first update in it.

Promises: after `put_back` the parameters of every optimizer that stepped are, bit for bit, as they were before the
step, in the same tensors. So are its state, the options of its groups, and what `checkpoints.attributes` finds beside
them. Learning rates are not touched.
"""

from __future__ import annotations

import copy
from operator import is_
from typing import TYPE_CHECKING, Any, Final

import torch

from tolariad.trainer.checkpoints.attributes import attributes_of, put_back, wrapped_by
from tolariad.trainer.checkpoints.tensors import copy_into
from tolariad.trainer.torch_private import lists

if TYPE_CHECKING:
    from torch.optim import Optimizer

# The rate controller writes the first. The others change with the model's shape only, and not in a step.
_NOT_OF_A_STEP: Final = ("lr", "params", "param_names")
# Values that are never changed in place, and tensors, whose values are copied apart.
_KEPT_AS_THEY_ARE: Final = (torch.Tensor, int, float, str, tuple, type(None))


class UpdateBackup:
    """The copies of one step. Each optimizer's memory is allocated once and used again in every step."""

    def __init__(self) -> None:
        self._memory: dict[Optimizer, _Copy] = {}
        self._kept: list[_Copy] = []

    def begin(self) -> None:
        """A step begins: nothing of it is kept yet."""
        self._kept = []

    @torch.no_grad()
    def keep(self, optimizer: Optimizer) -> None:
        """Copy what this optimizer changes, if that was not done in this step. Call it before each of its updates."""
        for wrapped in wrapped_by(optimizer).values():
            self.keep(wrapped)
        kept = self._memory.get(optimizer)
        if kept is None:
            kept = self._memory[optimizer] = _Copy(optimizer)
        if kept not in self._kept:
            kept.take()
            self._kept.append(kept)

    @torch.no_grad()
    def put_back(self) -> bool:
        """Undo the updates of this step. Return whether there was any."""
        undone, self._kept = self._kept, []
        for kept in undone:
            kept.put_back()
        return bool(undone)


class _Copy:
    """A copy of one optimizer's parameters, state and options."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._lives: list[torch.Tensor] = []
        self._copies: list[torch.Tensor] = []
        self._by_device: list[tuple[list[torch.Tensor], list[torch.Tensor]]] = []
        self._state: list[tuple[Any, Any]] = []
        self._options: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._attributes: dict[str, Any] = {}

    def take(self) -> None:
        """Copy the values of now."""
        optimizer = self._optimizer
        self._state = [(key, _content(held)) for key, held in optimizer.state.items()]
        self._options = [(group, _content(group, _NOT_OF_A_STEP)) for group in optimizer.param_groups]
        self._attributes = copy.deepcopy(attributes_of(optimizer))
        lives = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        for _, content in (*self._state, *self._options):
            if isinstance(content, dict):
                lives += [value for value in content.values() if isinstance(value, torch.Tensor)]
        if len(lives) != len(self._lives) or not all(map(is_, lives, self._lives)):
            self._lives, self._copies = lives, [torch.empty_like(live) for live in lives]
            self._by_device = _by_device(lives, self._copies)
        for copies, of_device in self._by_device:
            # One call for all of a device: a call for each would take most of the time.
            lists.copy_(copies, of_device)

    def put_back(self) -> None:
        """Restore the values of `take`."""
        for live, kept in zip(self._lives, self._copies, strict=True):
            copy_into(live, kept)
        state = self._optimizer.state
        before = dict(state)
        state.clear()
        for key, content in self._state:
            state[key] = _restored(before.get(key), content)
        for group, content in self._options:
            for name in [name for name in group if name not in content and name not in _NOT_OF_A_STEP]:
                del group[name]
            group.update(content)
        put_back(self._optimizer, self._attributes)


def _by_device(
    lives: list[torch.Tensor], copies: list[torch.Tensor]
) -> list[tuple[list[torch.Tensor], list[torch.Tensor]]]:
    """Return the copies and their originals, for each device: Adam keeps its counts on the host."""
    found: dict[torch.device, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
    for live, kept in zip(lives, copies, strict=True):
        each = found.setdefault(live.device, ([], []))
        each[0].append(kept)
        each[1].append(live)
    return list(found.values())


def _content(held: Any, but: tuple[str, ...] = ()) -> Any:
    """Return what a state or a group holds: tensors as they are, which are copied apart, copies of everything else."""
    if not isinstance(held, dict):
        return copy.deepcopy(held)
    return {
        key: value if isinstance(value, _KEPT_AS_THEY_ARE) else copy.deepcopy(value)
        for key, value in held.items()
        if key not in but
    }


def _restored(live: Any, content: Any) -> Any:
    """Return the live object with its former content."""
    if isinstance(live, dict) and isinstance(content, dict):
        live.clear()
        live.update(content)
        return live
    return content
