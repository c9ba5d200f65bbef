"""Find a strategy by its name: `default`, `package.module:Name` or `./file.py:Name`.

Promises: the text of a refusal says what is missing and which name is near. A class or function is called without
arguments; an object with `step` is used as it is.
"""

from __future__ import annotations

import hashlib
import inspect
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

from tolariad.core.calc.settings.strategies import DEFAULT
from tolariad.core.calc.text.nearest import nearest
from tolariad.imported import attribute_of, module_at
from tolariad.strategy.default import DefaultStrategy
from tolariad.strategy.interface import OPTIONAL, REQUIRED, Strategy

_KIND: Final = "strategy"
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
    module = module_at(place, name, _KIND, StrategyRefused)
    found = attribute_of(module, attribute, name, _refused)
    strategy: Any = found() if inspect.isclass(found) or inspect.isfunction(found) else found
    _check(strategy, name)
    return FoundStrategy(strategy, _hash_of(module))


def _refused(why: str) -> StrategyRefused:
    return StrategyRefused(f"{_KIND}: {why}")


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
