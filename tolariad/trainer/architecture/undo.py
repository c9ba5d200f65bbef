"""The objects that one change of a model replaced, kept so that a rollback can put them back.

Promises: after `put_back` the same modules hold the same parameters, buffers, submodules and plain attributes as before
the change, as the same objects. The run has its owners, optimizers their groups, and the rate controller what it held.
Values are not kept: the caller restores them from a checkpoint. Of an attribute that is a list, a dict or a set the
content is kept, one level deep.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import ref

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.optim import Optimizer

    from tolariad.trainer.lr import UnifiedLRController
    from tolariad.trainer.lr.controller import Mark
    from tolariad.trainer.optim.owners import Owner

Shapes = dict[str, tuple[tuple[int, ...], "torch.dtype"]]
_CONTAINERS: Final = (dict, OrderedDict, list, set, deque)


def shapes_of(model: nn.Module) -> Shapes:
    """Shape and dtype of every parameter, by name."""
    return {name: (tuple(parameter.shape), parameter.dtype) for name, parameter in model.named_parameters()}


class _Attribute(NamedTuple):
    """An attribute's object and, of a container, its content."""

    value: Any
    content: Any


class _Groups(NamedTuple):
    """An optimizer's groups, each with its parameters and their names."""

    optimizer: Optimizer
    groups: list[tuple[dict[str, Any], list[Any], list[str] | None]]


class Undo:
    """Made before a change. `settle` after it drops what the change left alone."""

    def __init__(self, model: nn.Module, owners: list[Owner], rates: UnifiedLRController) -> None:
        self._rates = rates
        self._owners, self._owned = owners, tuple(owners)
        # By weak references: what is kept must not keep the model alive. A module that a change removes is held by the
        # content of the one that it was removed from.
        self._modules: list[tuple[ref[nn.Module], dict[str, _Attribute]]] = [
            (ref(module), {name: _taken(value) for name, value in module.__dict__.items()})
            for module in model.modules()
        ]
        self._absent: list[tuple[ref[nn.Module], str]] | None = None
        self._optimizers = [_groups_of(owner.optimizer) for owner in owners]
        self._states = [dict(owner.optimizer.state) for owner in owners]
        self._mark: Mark = rates.mark()
        self.parameters = shapes_of(model)

    def settle(self) -> None:
        """The change is made: keep only what it replaced. Optimizer states of replaced parameters are not kept."""
        self._absent = self._new_attributes()
        self._modules = [
            (module, replaced)
            for module, before in self._modules
            if (replaced := {name: one for name, one in before.items() if not _is_still(one, module(), name)})
        ]
        self._states = []

    def put_back(self) -> None:
        """Undo the change: the last one that is in force."""
        self.put_model_back()
        self._owners[:] = self._owned
        self._rates.go_back(self._mark)

    def put_model_back(self) -> None:
        """Undo the change in the model and the optimizers only: their rates are not controlled any more."""
        # A change that failed half-way was never settled.
        for module, name in self._new_attributes() if self._absent is None else self._absent:
            _attributes(module()).pop(name, None)
        for module, attributes in self._modules:
            for name, one in attributes.items():
                _attributes(module())[name] = one.value
                _fill(one)
        for held in self._optimizers:
            _put_groups_back(held)
        for held, state in zip(self._optimizers, self._states, strict=False):
            held.optimizer.state.clear()
            held.optimizer.state.update(state)

    def _new_attributes(self) -> list[tuple[ref[nn.Module], str]]:
        return [
            (module, name) for module, before in self._modules for name in _attributes(module()) if name not in before
        ]


def _attributes(module: nn.Module | None) -> dict[str, Any]:
    """A module's own; of one that is gone there is nothing to put back."""
    return {} if module is None else module.__dict__


def _taken(value: Any) -> _Attribute:
    return _Attribute(value, value.copy() if type(value) in _CONTAINERS else None)


def _is_still(one: _Attribute, module: nn.Module | None, name: str) -> bool:
    if _attributes(module).get(name, _CONTAINERS) is not one.value:
        return False
    if one.content is None:
        return True
    now, before = (_items(each) for each in (one.value, one.content))
    return len(now) == len(before) and all(a is b for a, b in zip(now, before, strict=True))


def _items(container: Any) -> list[Any]:
    """Return the keys and values of a container, in its order."""
    return [one for pair in container.items() for one in pair] if isinstance(container, dict) else list(container)


def _fill(one: _Attribute) -> None:
    """Give the container its content back; the object stays, because others may hold it."""
    if one.content is None:
        return
    one.value.clear()
    if isinstance(one.value, dict | set):
        one.value.update(one.content)
    else:
        one.value.extend(one.content)


def _groups_of(optimizer: Optimizer) -> _Groups:
    groups = [
        (g, list(g["params"]), list(g["param_names"]) if "param_names" in g else None) for g in optimizer.param_groups
    ]
    return _Groups(optimizer, groups)


def _put_groups_back(held: _Groups) -> None:
    optimizer = held.optimizer
    optimizer.param_groups[:] = [group for group, _, _ in held.groups]
    for group, parameters, names in held.groups:
        group["params"][:] = parameters
        if names is not None:
            group["param_names"] = names
    present = {id(parameter) for _, parameters, _ in held.groups for parameter in parameters}
    for parameter in [one for one in optimizer.state if id(one) not in present]:
        del optimizer.state[parameter]
