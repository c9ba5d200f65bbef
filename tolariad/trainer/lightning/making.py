"""Find and make a LightningModule and its data module, with the hyper-parameters of `task_options`.

Promises: each option reaches a constructor that takes it by name; one that nobody takes is refused with the nearest
name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from tolariad.core.calc.text.nearest import KEYS_ALIKE, did_you_mean, nearest
from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.lightning.hooks import lightning_base

# Options of the task itself: the others are those of the constructors.
_OWN: Final = ("datamodule", "gradient_clip_val", "gradient_clip_algorithm")


class Parts(NamedTuple):
    """The class of a module (or a function that makes one), and how a data module is found by its name."""

    module: Callable[..., Any]
    datamodule: Callable[[str], Callable[..., Any]]


class BuiltModules(NamedTuple):
    """A module, its data module or None, and how gradients are clipped: the limit or None, and `norm` or `value`."""

    module: Any
    datamodule: Any
    clip: tuple[float | None, str]


def made(parts: Parts, options: Mapping[str, Any]) -> BuiltModules:
    """Make the module and the data module that the options name. Raises SetupRefused."""
    named = options.get("datamodule")
    makers = [parts.module]
    if named is not None:
        makers.append(parts.datamodule(str(named)))
    given = {name: value for name, value in options.items() if name not in _OWN}
    taken = [_taken(maker, given) for maker in makers]
    for name in given:
        if not any(name in one for one in taken):
            raise SetupRefused(_unknown(name, makers))
    found = [_call(maker, arguments) for maker, arguments in zip(makers, taken, strict=True)]
    for one, kind in zip(found, ("LightningModule", "LightningDataModule"), strict=False):
        if lightning_base(type(one), kind) is None:
            raise SetupRefused(f"task: a {kind} is needed, and {type(one).__name__} is none")
    return BuiltModules(found[0], found[1] if found[1:] else None, _clip(options))


def _taken(maker: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that the constructor takes by name; all of them if it takes any."""
    parameters = inspect.signature(maker).parameters.values()
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters):
        return dict(given)
    names = {one.name for one in parameters if one.kind is not inspect.Parameter.POSITIONAL_ONLY}
    return {name: value for name, value in given.items() if name in names}


def _unknown(option: str, makers: list[Callable[..., Any]]) -> str:
    names = [name for maker in makers for name in inspect.signature(maker).parameters]
    known = [*names, *_OWN]
    hint = did_you_mean(nearest(option, known, KEYS_ALIKE)) or f"; there are {', '.join(known)}"
    of = " nor ".join(getattr(maker, "__name__", "the function") for maker in makers)
    of = f"neither {of} takes" if makers[1:] else f"{of} does not take"
    return f"task_options.{option}: {of} this argument{hint}"


def _call(maker: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    name = getattr(maker, "__name__", "the function")
    try:
        inspect.signature(maker).bind(**arguments)
    except TypeError as error:
        raise SetupRefused(f"{name} cannot be made: {error}; give it as task_options: {{name: value}}") from error
    return maker(**arguments)


def _clip(options: Mapping[str, Any]) -> tuple[float | None, str]:
    limit, how = options.get("gradient_clip_val"), options.get("gradient_clip_algorithm", "norm")
    if how not in {"norm", "value"}:
        raise SetupRefused(f"task_options.gradient_clip_algorithm must be norm or value, not {how!r}")
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, (int, float)) or limit < 0):
        raise SetupRefused(f"task_options.gradient_clip_val must be a number from 0 on, not {limit!r}")
    return (float(limit) if limit else None), how
