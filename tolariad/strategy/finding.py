"""Find a strategy by its name: `default`, `package.module:Name` or `./file.py:Name`.

Promises: the text of a refusal says what is missing and which name is near. A class or function is called without
arguments; an object with `step` is used as it is.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

from tolariad.core.nearest import KEYS_ALIKE, did_you_mean, nearest
from tolariad.core.settings.strategies import DEFAULT
from tolariad.strategy.default import DefaultStrategy
from tolariad.strategy.interface import OPTIONAL, REQUIRED, Strategy

_SIMILARITY: Final = 0.7


class StrategyRefused(ValueError):
    """There is no strategy of this name. The text says why and what to do."""


class FoundStrategy(NamedTuple):
    """`source_hash`: SHA-256 of the file that defines it, in hexadecimal; "" if there is no file."""

    strategy: Strategy
    source_hash: str


def find_strategy(name: str) -> FoundStrategy:
    """Return the strategy of this name. Raises StrategyRefused, and what the user's file raises."""
    if name == DEFAULT:
        return FoundStrategy(DefaultStrategy(), "")
    place, _, attribute = name.rpartition(":")
    if not place or not attribute:
        raise StrategyRefused(f"strategy: {name!r} is not {DEFAULT}, package.module:Name or ./file.py:Name")
    module = _from_file(Path(place), name) if place.endswith(".py") else _from_package(place, name)
    found = _attribute(module, attribute, name)
    strategy: Any = found() if inspect.isclass(found) or inspect.isfunction(found) else found
    _check(strategy, name)
    return FoundStrategy(strategy, _hash_of(module))


def _from_file(path: Path, name: str) -> ModuleType:
    path = path.resolve()
    if not path.is_file():
        raise StrategyRefused(
            f"strategy: there is no file {path} (from {name!r}; relative paths start at {Path.cwd()})"
        )
    # A prefixed name cannot hide an installed module. The file can import modules beside it.
    spec = importlib.util.spec_from_file_location(f"tolaria_strategy_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise StrategyRefused(f"strategy: {path} cannot be imported as Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    spec.loader.exec_module(module)
    return module


def _from_package(place: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        why = f"{error}; is it installed, or on PYTHONPATH?"
        raise StrategyRefused(f"strategy: {name!r} cannot be imported: {why}") from error


def _attribute(module: ModuleType, attribute: str, name: str) -> Any:
    found: Any = module
    for part in attribute.split("."):
        within, found = found, getattr(found, part, None)
        if found is None:
            known = [one for one, value in vars(within).items() if callable(value) and not one.startswith("_")]
            near = nearest(part, known, KEYS_ALIKE)
            question = did_you_mean(near and attribute.replace(part, near))
            place = Path(name.rpartition(":")[0]).name
            raise StrategyRefused(f"strategy: {place} has no {attribute!r}{question}")
    return found


def _check(strategy: Any, name: str) -> None:
    """Raise StrategyRefused if the object cannot be used as a strategy."""
    if not callable(getattr(strategy, "step", None)):
        near = nearest("step", _methods(strategy), _SIMILARITY)
        hint = f"; rename {near} to step" if near else "; it needs step(packet)"
        raise StrategyRefused(f"strategy: {name!r} has no method step{hint}")
    try:
        inspect.signature(strategy.step).bind(object())
    except TypeError as error:
        raise StrategyRefused(f"strategy: {name!r}: step is called as step(packet): {error}") from error
    except ValueError:
        pass  # a function of C does not tell its signature
    has = [callable(getattr(strategy, one, None)) for one in ("state_dict", "load_state_dict")]
    if has[0] != has[1]:
        missing = ("state_dict", "load_state_dict")[has.index(False)]
        raise StrategyRefused(f"strategy: {name!r} has no method {missing}; a strategy has both or neither")
    for method in _methods(strategy):
        near = nearest(method, OPTIONAL, 0.85)
        if near and method not in (*REQUIRED, *OPTIONAL) and not hasattr(strategy, near):
            raise StrategyRefused(f"strategy: {name!r}: {method} is never called; rename it to {near}")


def _methods(strategy: Any) -> list[str]:
    return [one for one in dir(strategy) if not one.startswith("_") and callable(getattr(strategy, one, None))]


def _hash_of(module: ModuleType) -> str:
    path = Path(module.__file__ or "")
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
