"""Optimizers by name, with their parameter groups.

Promises: every parameter that needs a gradient is in exactly one group. A pattern that matches nothing, and an argument
that the optimizer does not have, are refused before training.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from tolariad.core.settings.optimization import OptimizerGroup
from tolariad.core.settings.rules import optimizer_arguments
from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.optim import CautiousAdamW
from tolariad.trainer.optim.owners import HOST

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from tolariad.core.settings.model import Settings

_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")

CLASSES: Final[dict[str, Callable[..., torch.optim.Optimizer]]] = {
    "adamw": torch.optim.AdamW,
    "cautious_adamw": CautiousAdamW,
    "adam": torch.optim.Adam,
    "sgd": torch.optim.SGD,
    "rmsprop": torch.optim.RMSprop,
    "adagrad": torch.optim.Adagrad,
}


class Groups(NamedTuple):
    """An optimizer and, for each of its groups, the configured group it comes from (None: the general settings)."""

    optimizer: torch.optim.Optimizer
    origins: tuple[OptimizerGroup | None, ...]


def build_optimizer(task: Any, model: nn.Module, settings: Settings) -> Groups:
    """Return the task's optimizer, or else the configured one. Raises SetupRefused."""
    _check_trains(model)
    own = getattr(task, "optimizer", None)
    if callable(own):
        groups = _own(own(model, settings))
    elif callable(getattr(task, "param_groups", None)):
        parameters = list(task.param_groups(model, settings))
        optimizer = _made(settings, parameters)
        groups = Groups(optimizer, (None,) * len(optimizer.param_groups))
    else:
        groups = _configured(model, settings)
    _check_cover(model, {HOST: groups.optimizer})
    return groups


def build_optimizers(task: Any, model: nn.Module, settings: Settings) -> dict[str, Groups]:
    """The optimizer of each owner, by the owner's name: those of the task's `optimizers(model)`, else one for the host.

    Raises SetupRefused.
    """
    several = getattr(task, "optimizers", None)
    if not callable(several):
        return {HOST: build_optimizer(task, model, settings)}
    for other in ("optimizer", "param_groups"):
        if callable(getattr(task, other, None)):
            raise SetupRefused(f"the task has both optimizers(model) and {other}(model, cfg); keep one of them")
    _check_trains(model)
    found = several(model)
    if not isinstance(found, Mapping) or not found:
        raise SetupRefused(f"the task's optimizers(model) gave {found!r}, not a dict of optimizers by name")
    for name in found:
        if not isinstance(name, str) or _NAME.fullmatch(name) is None:
            raise SetupRefused(f"optimizers(model): {name!r} is not a name of letters, digits and _ . -, at most 64")
    owned = {name: _own(optimizer, f"optimizers(model)[{name!r}]") for name, optimizer in found.items()}
    _check_cover(model, {name: groups.optimizer for name, groups in owned.items()})
    return owned


def _check_trains(model: nn.Module) -> None:
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise SetupRefused("the model has no parameter that needs a gradient; there is nothing to train")


def _own(optimizer: Any, where: str = "optimizer(model, cfg)") -> Groups:
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise SetupRefused(f"the task's {where} must return a torch Optimizer, not a {type(optimizer).__name__}")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise SetupRefused("LBFGS evaluates the loss several times a step through a closure; choose another optimizer")
    return Groups(optimizer, (None,) * len(optimizer.param_groups))


def _configured(model: nn.Module, settings: Settings) -> Groups:
    """Group parameters by the patterns of `optimizer.groups`; the first match counts. The rest form the last group."""
    # None: the parameters that no pattern matches, with the general settings.
    configured = (*settings.optimizer.groups, None)
    sorted_in: list[list[tuple[str, nn.Parameter]]] = [[] for _ in configured]
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            matching = (at for at, one in enumerate(configured) if one is None or fnmatch.fnmatchcase(name, one.match))
            sorted_in[next(matching)].append((name, parameter))
    specs: list[dict[str, Any]] = []
    origins: list[OptimizerGroup | None] = []
    for group, members in zip(configured, sorted_in, strict=True):
        if members:
            specs.append({"params": members, **(optimizer_arguments(group) if group else {})})
            origins.append(group)
        elif group is not None:
            raise SetupRefused(f"optimizer.groups: the pattern {group.match!r} matches no parameter that is left to it")
    return Groups(_made(settings, specs), tuple(origins))


def _made(settings: Settings, parameters: list[Any]) -> torch.optim.Optimizer:
    options = settings.optimizer
    arguments = optimizer_arguments(options)
    try:
        return CLASSES[options.name](parameters, lr=settings.learning_rate.base_lr, **arguments)
    except (TypeError, ValueError) as error:
        raise SetupRefused(f"optimizer: {options.name} refuses its arguments: {error}") from error


def _check_cover(model: nn.Module, owners: Mapping[str, torch.optim.Optimizer]) -> None:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    every = [
        (owner, index, parameter)
        for owner, optimizer in owners.items()
        for index, group in enumerate(optimizer.param_groups)
        for parameter in group["params"]
    ]
    held: dict[int, str] = {}
    for owner, _, parameter in every:
        if held.setdefault(id(parameter), owner) != owner:
            name = names.get(id(parameter), f"a parameter of shape {tuple(parameter.shape)}")
            raise SetupRefused(f"{name} is in two optimizers, {held[id(parameter)]} and {owner}; keep one")
    left = [
        name for name, parameter in model.named_parameters() if parameter.requires_grad and id(parameter) not in held
    ]
    if left:
        shown = ", ".join(left[:5])
        raise SetupRefused(f"no group of the optimizer holds {shown}; freeze them (requires_grad_(False)) or add them")
    for owner, index, parameter in every:
        if id(parameter) not in names:
            which = "the optimizer" if len(owners) == 1 else f"optimizer {owner}"
            raise SetupRefused(
                f"group {index} of {which} holds a parameter of shape {tuple(parameter.shape)} that is not the "
                "model's: no checkpoint would contain it; make it a part of the module that model(cfg) returns"
            )
