"""Import what a configuration names as `package.module:Name` or `./file.py:Name`.

Promises: only that module is imported. A name that is not there is refused with the nearest one.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tolariad.core.nearest import KEYS_ALIKE, did_you_mean, nearest
from tolariad.trainer.errors import SetupRefused

if TYPE_CHECKING:
    from types import ModuleType


def place_of(name: str, kind: str, known: Collection[str]) -> tuple[str, str]:
    """Return file or package, and the name in it. `known`: the names without a colon. Raises SetupRefused.

    `kind` is the setting, such as `task`: messages begin with it, and the module of a file is named for it.
    """
    place, separator, attribute = name.rpartition(":")
    if not separator or not attribute:
        names = ", ".join(known)
        hint = did_you_mean(nearest(name, known, KEYS_ALIKE))
        raise SetupRefused(f"{kind}: {name!r} is not one of {names}, package.module:Name, ./file.py:Name{hint}")
    return place, attribute


def module_at(place: str, name: str, kind: str) -> ModuleType:
    """Import the file or package that `name` begins with. Raises SetupRefused."""
    return _from_file(Path(place), name, kind) if place.endswith(".py") else _from_package(place, name, kind)


def attribute_of(module: ModuleType, attribute: str, name: str) -> Any:
    """Return what the module has under this dotted name. Raises SetupRefused."""
    found: Any = module
    for part in attribute.split("."):
        within, found = found, getattr(found, part, None)
        if found is None:
            place = Path(name.rpartition(":")[0]).name or module.__name__
            raise SetupRefused(f"{place} has no {attribute!r}{_nearest(within, attribute, part)}")
    return found


def _from_file(path: Path, name: str, kind: str) -> ModuleType:
    path = path.resolve()
    if not path.is_file():
        raise SetupRefused(f"{kind}: there is no file {path} (from {name!r}; relative paths start at {Path.cwd()})")
    # Use a prefixed module name, so that it cannot hide an installed module. Add its folder to the path, so that it can
    # import modules beside it.
    spec = importlib.util.spec_from_file_location(f"tolaria_{kind}_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise SetupRefused(f"{kind}: {path} cannot be imported as Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # spawned DataLoader workers, and dataclasses, look it up there
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    spec.loader.exec_module(module)
    return module


def _from_package(place: str, name: str, kind: str) -> ModuleType:
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        raise SetupRefused(
            f"{kind}: {name!r} cannot be imported: {error}; is it installed, or on PYTHONPATH?"
        ) from error


def _nearest(within: Any, attribute: str, part: str) -> str:
    """Return the question for the public class or function of `within` with the nearest name; "" if none is near."""
    known = [name for name, value in vars(within).items() if callable(value) and not name.startswith("_")]
    close = nearest(part, known, KEYS_ALIKE)
    return did_you_mean(close and attribute.replace(part, close))
