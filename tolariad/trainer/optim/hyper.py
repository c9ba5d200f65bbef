"""Orders of hyper-parameters other than the rate: set in the groups of an optimizer, before the next update.

Promises: an order is checked as a whole before anything is changed, by the optimizer's own constructor. The values are
a part of the optimizer's groups, so checkpoints contain them and a rollback puts them back.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final

import torch

from tolariad.core import messages as m
from tolariad.trainer.orders.numbered import OrderRefused

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch.optim import Optimizer

    from tolariad.trainer.setup import Setup

# The members of `betas` by the names that they have in an order.
_BETAS: Final = {"beta1": 0, "beta2": 1}
_NOT_ORDERED: Final = frozenset({"lr", "params", "param_names"})


class Hyperparameters:
    """Those of all optimizers of a run."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup

    def set(self, order: m.SetHyperparameters) -> None:
        """Set the values in every group that is meant. Raises OrderRefused, with nothing changed."""
        found = list(self._groups(order.optimizer))
        if not found:
            raise OrderRefused(f"there is no optimizer or group {order.optimizer!r}")
        changed = [(group, changes_of(optimizer, group, order.values)) for optimizer, group in found]
        for group, values in changed:
            group.update(values)
        self._setup.watch.begin_anew()

    def _groups(self, wanted: str) -> Iterator[tuple[Optimizer, dict[str, Any]]]:
        """Yield the groups of the optimizers of this name, or the groups of this name, with their optimizers."""
        for owner in self._setup.owners:
            names = self._setup.rates.names_of(owner.name)
            for name, group in zip(names, owner.optimizer.param_groups, strict=True):
                if m.is_of(wanted, owner.name) or m.is_of(wanted, name):
                    yield owner.optimizer, group


def changes_of(optimizer: Optimizer, group: dict[str, Any], values: Mapping[str, float]) -> dict[str, Any]:
    """Return the entries of the group that change, with their new values. Raises OrderRefused."""
    changes: dict[str, Any] = {}
    for name, value in values.items():
        if name in _BETAS and isinstance(betas := changes.get("betas", group.get("betas")), tuple | list):
            changed = list(betas)
            changed[_BETAS[name]] = float(value)
            changes["betas"] = tuple(changed)
        elif _is_ordered(name, group.get(name)):
            changes[name] = float(value)
        else:
            known = sorted(one for one, held in group.items() if _is_ordered(one, held))
            known += list(_BETAS) if "betas" in group else []
            kind = type(optimizer).__name__
            raise OrderRefused(f"{kind} has no hyper-parameter {name!r} that can be set; it has {', '.join(known)}")
    _check(optimizer, {**group, **changes})
    return changes


def _is_ordered(name: str, held: Any) -> bool:
    """Return whether an order may set this entry: a number, and no switch."""
    return name not in _NOT_ORDERED and isinstance(held, int | float) and not isinstance(held, bool)


def _check(optimizer: Optimizer, options: dict[str, Any]) -> None:
    """Let the optimizer's constructor check the options, with a parameter of one element. Raises OrderRefused."""
    kind: Any = type(optimizer)
    taken = inspect.signature(kind).parameters
    given = {name: value for name, value in options.items() if name in taken and name not in _NOT_ORDERED}
    try:
        kind([torch.nn.Parameter(torch.zeros(1))], **given)
    except (ValueError, TypeError, RuntimeError) as error:
        raise OrderRefused(f"{kind.__name__} refuses these values: {error}") from error
