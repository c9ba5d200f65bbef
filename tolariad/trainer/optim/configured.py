"""Optimizers by name, with their parameter groups.

Promises: every parameter that needs a gradient is in exactly one group. Frozen ones are in the groups of the
configuration too: without a gradient nothing moves them, until the program unfreezes them. A pattern that matches
nothing, and an argument that the optimizer does not have, are refused before training.
"""

from __future__ import annotations

import fnmatch
import gc
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from tolariad.core.calc.settings.optimization import OptimizerGroup
from tolariad.core.calc.settings.rules import optimizer_arguments, rates_of
from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.optim import CautiousAdamW
from tolariad.trainer.optim.owners import HOST
from tolariad.trainer.tasks.given import model_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from tolariad.core.calc.settings.model import Settings
    from tolariad.core.calc.settings.optimization import LearningRate, Optimizer, PartOptimizer

_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")

CLASSES: Final[dict[str, Callable[..., torch.optim.Optimizer]]] = {
    "adamw": torch.optim.AdamW,
    "cautious_adamw": CautiousAdamW,
    "adam": torch.optim.Adam,
    "sgd": torch.optim.SGD,
    "rmsprop": torch.optim.RMSprop,
    "adagrad": torch.optim.Adagrad,
}

# Options that leave the arithmetic as it is on paper, and change its bits.
_IMPLEMENTATIONS: Final = ("fused", "foreach", "capturable", "differentiable")


class Groups(NamedTuple):
    """An optimizer and, for each of its groups, the configured group it comes from (None: the general settings).

    `rates`: the configured rates of a part's optimizer. None: the general ones, in the ratio that the task gave.
    """

    optimizer: torch.optim.Optimizer
    origins: tuple[OptimizerGroup | None, ...]
    rates: LearningRate | None = None


def build_optimizer(task: Any, model: nn.Module, settings: Settings) -> Groups:
    """Return the task's optimizer, or else the configured one. Raises SetupRefused."""
    _check_trains(model)
    own = getattr(task, "optimizer", None)
    if callable(own):
        groups = _own(own(model, settings))
    elif callable(getattr(task, "param_groups", None)):
        parameters = list(task.param_groups(model, settings))
        optimizer = _made(settings.optimizer, settings.learning_rate, parameters, "optimizer")
        groups = Groups(optimizer, (None,) * len(optimizer.param_groups))
    else:
        groups = _grouped(dict(model.named_parameters()), settings.optimizer, settings.learning_rate, "optimizer")
    _check_cover(task, model, {HOST: groups.optimizer})
    return groups


def build_optimizers(task: Any, model: nn.Module, settings: Settings) -> dict[str, Groups]:
    """The optimizer of each owner, by name: the task's `optimizers(model)`, the configured ones, or one for the host.

    Raises SetupRefused.
    """
    several = getattr(task, "optimizers", None)
    if not callable(several):
        if settings.optimizers:
            return _of_parts(task, model, settings)
        return {HOST: build_optimizer(task, model, settings)}
    if settings.optimizers:
        raise SetupRefused("both the configuration's `optimizers` and the task's optimizers(model) exist; keep one")
    for other in ("optimizer", "param_groups"):
        if callable(getattr(task, other, None)):
            raise SetupRefused(f"the task has both optimizers(model) and {other}(model, cfg); keep one of them")
    _check_trains(model)
    found = several(model)
    if not isinstance(found, Mapping) or not found:
        raise SetupRefused(f"the task's optimizers(model) gave {found!r}, not a dict of optimizers by name")
    _check_names(found, "optimizers(model)")
    owned = {name: _own(optimizer, f"optimizers(model)[{name!r}]") for name, optimizer in found.items()}
    _check_cover(task, model, {name: groups.optimizer for name, groups in owned.items()})
    return owned


def implementations(owned: Mapping[str, Groups]) -> str:
    """Return kind and implementation of each optimizer that the task or the program made."""
    made = [(name, groups.optimizer) for name, groups in owned.items() if groups.rates is None]
    return "; ".join(f"{name}: {_implementation(optimizer)}" for name, optimizer in made)


def _implementation(optimizer: torch.optim.Optimizer) -> str:
    kind = f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"
    chosen = [
        f"{name}={'/'.join(dict.fromkeys(str(group.get(name)) for group in optimizer.param_groups))}"
        for name in _IMPLEMENTATIONS
        if any(group.get(name) is not None for group in optimizer.param_groups)
    ]
    return f"{kind}({', '.join(chosen)})"


def _of_parts(task: Any, model: nn.Module, settings: Settings) -> dict[str, Groups]:
    """The configured optimizer of each part of the model. A part is a submodule, or what its patterns match."""
    for other in ("optimizer", "param_groups"):
        if callable(getattr(task, other, None)):
            raise SetupRefused(f"both the configuration's `optimizers` and the task's {other}(model, cfg) exist")
    _check_names(settings.optimizers, "optimizers")
    _check_trains(model)
    trained, part_of, owned = dict(model.named_parameters()), dict[str, str](), {}
    for part, options in settings.optimizers.items():
        names = _names_in(part, options, trained, model)
        for name in names:
            if part_of.setdefault(name, part) != part:
                raise SetupRefused(
                    f"{name} belongs to two of `optimizers`, {part_of[name]} and {part}; change `match` of one of them"
                )
        here = {name: trained[name] for name in names}
        owned[part] = _grouped(here, options, rates_of(settings, options), f"optimizers.{part}")
    if left := [name for name, one in trained.items() if one.requires_grad and name not in part_of]:
        raise SetupRefused(
            f"none of `optimizers` ({', '.join(owned)}) has {_shown(left)}; add a part or a pattern for them, or "
            "freeze them (requires_grad_(False))"
        )
    return owned


def _names_in(part: str, options: PartOptimizer, trained: Iterable[str], model: nn.Module) -> list[str]:
    """Return the names of a part's parameters. Raises SetupRefused if there are none."""
    match = options.match
    patterns = (part, f"{part}.*") if match is None else (match,) if isinstance(match, str) else match
    for pattern in patterns if match is not None else ():
        if not any(fnmatch.fnmatchcase(name, pattern) for name in trained):
            raise SetupRefused(f"optimizers.{part}.match: the pattern {pattern!r} matches no parameter that is trained")
    names = [name for name in trained if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]
    if not names:
        parts = ", ".join(name for name, _ in model.named_children())
        raise SetupRefused(
            f"optimizers.{part}: the model has no part {part!r} with parameters to train (its parts: "
            f"{parts or 'none'}). Name one of them, or set `match` to a pattern of parameter names"
        )
    return names


def _check_names(names: Iterable[Any], where: str) -> None:
    for name in names:
        if not isinstance(name, str) or _NAME.fullmatch(name) is None:
            raise SetupRefused(f"{where}: {name!r} is not a name of letters, digits and _ . -, at most 64")


def _shown(names: list[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if names[5:] else "")


def _check_trains(model: nn.Module) -> None:
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise SetupRefused("the model has no parameter that needs a gradient; there is nothing to train")


def _own(optimizer: Any, where: str = "optimizer(model, cfg)") -> Groups:
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise SetupRefused(f"the task's {where} must return a torch Optimizer, not a {type(optimizer).__name__}")
    return Groups(optimizer, (None,) * len(optimizer.param_groups))


def _grouped(trained: Mapping[str, nn.Parameter], options: Optimizer, rates: LearningRate, where: str) -> Groups:
    """Group parameters by the patterns of the groups; the first match counts. The rest form the last group.

    `where`: the key of `options` in the configuration.
    """
    # None: the parameters that no pattern matches, with the general settings.
    configured = (*options.groups, None)
    sorted_in: list[list[tuple[str, nn.Parameter]]] = [[] for _ in configured]
    for name, parameter in trained.items():
        matching = (at for at, one in enumerate(configured) if one is None or fnmatch.fnmatchcase(name, one.match))
        sorted_in[next(matching)].append((name, parameter))
    specs: list[dict[str, Any]] = []
    origins: list[OptimizerGroup | None] = []
    for group, members in zip(configured, sorted_in, strict=True):
        if members:
            specs.append({"params": members, **(optimizer_arguments(group) if group else {})})
            origins.append(group)
        elif group is not None:
            raise SetupRefused(f"{where}.groups: the pattern {group.match!r} matches no parameter that is left to it")
    return Groups(_made(options, rates, specs, where), tuple(origins), rates)


def _made(options: Optimizer, rates: LearningRate, parameters: list[Any], where: str) -> torch.optim.Optimizer:
    arguments = optimizer_arguments(options)
    try:
        return CLASSES[options.name](parameters, lr=rates.base_lr, **arguments)
    except (TypeError, ValueError) as error:
        raise SetupRefused(f"{where}: {options.name} refuses its arguments: {error}") from error


def _check_cover(task: Any, model: nn.Module, owners: Mapping[str, torch.optim.Optimizer]) -> None:
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
        raise SetupRefused(
            f"no group of the optimizer holds {_shown(left)}; freeze them (requires_grad_(False)) or add them"
        )
    for owner, index, parameter in every:
        if id(parameter) not in names:
            which = "the optimizer" if len(owners) == 1 else f"optimizer {owner}"
            raise SetupRefused(
                f"group {index} of {which} holds {_foreign(parameter)}, which is not the model's. No checkpoint would "
                f"contain it. Make it a part of {model_of(task)}: nn.ModuleList([model, loss]), for example, or "
                "model.loss = loss"
            )


def _foreign(parameter: torch.Tensor) -> str:
    """Return the words for a parameter that the model does not have: its longest name in a module, and its shape."""
    modules = [one for one in gc.get_objects() if issubclass(type(one), torch.nn.Module)]
    names = [
        (name, type(module).__name__)
        for module in modules
        for name, found in module.named_parameters(remove_duplicate=False)
        if found is parameter
    ]
    shape = f"shape {tuple(parameter.shape)}"
    name, kind = max(names, key=lambda one: len(one[0]), default=("", ""))
    return f"{name} of a {kind} ({shape})" if name else f"a parameter of {shape}"
