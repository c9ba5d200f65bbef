"""Find a blueprint by name: built in, of an installed package, `package.module:Name`, or `./file.py:Name`.

Promises: only the module that the name means is imported. A package registers blueprints as entry points of the group
`tolariad.blueprints`; the built-in names cannot be taken.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from blake3 import blake3

from tolariad.core.calc.text.nearest import did_you_mean, nearest
from tolariad.imported import attribute_of, module_at, place_of
from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.seeds.blueprints import Blueprint, Bottleneck, Conv, LowRank

if TYPE_CHECKING:
    from types import ModuleType

GROUP: Final = "tolariad.blueprints"
_KIND: Final = "blueprint"
_BUILT_IN: Final[dict[str, Any]] = {"bottleneck": Bottleneck, "conv": Conv, "low_rank": LowRank}


def find_blueprint(name: str, parameters: Mapping[str, float] | None = None) -> Blueprint:
    """Return the blueprint of this name. `parameters`: its options, such as `{"rank": 4.0}`.

    A class or a function is called with the options; an instance takes none. Raises SetupRefused, also if importing or
    calling it raises an Exception. Importing a file runs it: its code may draw random numbers, so preserve the
    generators around this call.
    """
    found = _BUILT_IN.get(name)
    try:
        found = _imported(name)[0] if found is None else found
        made = _made(found, name, dict(parameters or {}))
    except SetupRefused:
        raise
    except Exception as error:  # any code of the user's may run here
        raise SetupRefused(f"blueprint: {name!r} raised {type(error).__name__}: {error}") from error
    if not callable(getattr(made, "build", None)):
        raise SetupRefused(f"blueprint: {name!r} is a {type(made).__name__} without a method build(example)")
    blueprint: Blueprint = made
    return blueprint


def source_of(name: str) -> str:
    """Return the BLAKE3 of the file that the blueprint is in, "" of a built-in one. It is imported, but not called.

    Raises SetupRefused, also if importing it raises an Exception, or if it has no method `build`.
    """
    if name in _BUILT_IN:
        return ""
    try:
        found, module = _imported(name)
    except SetupRefused:
        raise
    except Exception as error:
        raise SetupRefused(f"blueprint: {name!r} raised {type(error).__name__}: {error}") from error
    # What a function makes is not known before it is called.
    if not inspect.isfunction(found) and not callable(getattr(found, "build", None)):
        raise SetupRefused(f"blueprint: {name!r} is a {type(found).__name__} without a method build(example)")
    path = Path(getattr(module, "__file__", None) or "")
    return blake3(path.read_bytes()).hexdigest() if path.is_file() else ""


def blueprint_names() -> tuple[str, ...]:
    """Return the names of all registered blueprints: the built-in ones first."""
    others = {point.name for point in entry_points(group=GROUP)} - _BUILT_IN.keys()
    return (*_BUILT_IN, *sorted(others))


def _imported(name: str) -> tuple[Any, ModuleType | None]:
    """Return what has this name, and its module."""
    points = {} if ":" in name else {point.value: point for point in entry_points(group=GROUP, name=name)}
    if len(points) > 1:
        raise SetupRefused(f"blueprint: several packages register {name!r}: {', '.join(sorted(points))}; name one so")
    for point in points.values():
        return point.load(), sys.modules.get(point.module)
    place, attribute = place_of(name, _KIND, blueprint_names(), SetupRefused)
    module = module_at(place, name, _KIND, SetupRefused)
    return attribute_of(module, attribute, name, SetupRefused), module


def _made(found: Any, name: str, options: dict[str, float]) -> Any:
    if not (inspect.isclass(found) or inspect.isfunction(found)):
        if options:
            raise SetupRefused(f"blueprint: {name!r} is an object, which takes no options ({', '.join(options)})")
        return found
    known = inspect.signature(found).parameters
    if not any(one.kind is inspect.Parameter.VAR_KEYWORD for one in known.values()):
        for option in options:
            if option not in known:
                hint = did_you_mean(nearest(option, known))
                raise SetupRefused(f"blueprint: {name!r} has no option {option!r}{hint}")
    return found(**options)
