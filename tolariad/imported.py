"""Import what a configuration names as `package.module:Name` or `./file.py:Name`.

Promises: only that module is imported. A name that is not there is refused with the nearest one. `refused` makes the
error of a text: each caller has its own class.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import zipfile
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from tolariad.core.calc.text.nearest import KEYS_ALIKE, did_you_mean, nearest

if TYPE_CHECKING:
    from types import ModuleType

Refused: TypeAlias = Callable[[str], Exception]
# By the module's name: its file, and the entry of the search path.
_LENT: Final[dict[str, tuple[Path, str]]] = {}


def place_of(name: str, kind: str, known: Collection[str], refused: Refused) -> tuple[str, str]:
    """Return file or package, and the name in it. `known`: the names without a colon. Raises `refused`.

    `kind` is the setting, such as `task`: messages begin with it, and the module of a file is named for it.
    """
    place, separator, attribute = name.rpartition(":")
    if not separator or not attribute:
        names = ", ".join(known)
        hint = did_you_mean(nearest(name, known, KEYS_ALIKE))
        raise refused(f"{kind}: {name!r} is not one of {names}, package.module:Name, ./file.py:Name{hint}")
    return place, attribute


def module_at(place: str, name: str, kind: str, refused: Refused) -> ModuleType:
    """Import the file or package that `name` begins with. Raises `refused`, and what the module raises."""
    if place.endswith(".py"):
        return _from_file(Path(place), name, kind, refused)
    return _from_package(place, name, kind, refused)


def attribute_of(module: ModuleType, attribute: str, name: str, refused: Refused) -> Any:
    """Return what the module has under this dotted name. Raises `refused`."""
    found: Any = module
    for part in attribute.split("."):
        within, found = found, getattr(found, part, None)
        if found is None:
            place = Path(name.rpartition(":")[0]).name or module.__name__
            raise refused(f"{place} has no {attribute!r}{_nearest(within, attribute, part)}")
    return found


def _from_file(path: Path, name: str, kind: str, refused: Refused) -> ModuleType:
    path = path.resolve()
    if not path.is_file():
        raise refused(f"{kind}: there is no file {path} (from {name!r}; relative paths start at {Path.cwd()})")
    # Use a prefixed module name, so that it cannot hide an installed module. Add its folder to the path, so that it can
    # import modules beside it.
    spec = importlib.util.spec_from_file_location(f"tolaria_{kind}_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise refused(f"{kind}: {path} cannot be imported as Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look it up there
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    _lend_to_children(spec.name, path)
    spec.loader.exec_module(module)
    return module


def _lend_to_children(name: str, path: Path) -> None:
    """Let processes that this one spawns import the module by its name: they get the search path, and no modules.

    The name is that of no file. So the search path gets an archive in memory with one module, which runs the file. It
    exists as long as this process does, and leaves nothing on a disk. Of two files of one name the newer one counts.
    """
    former, entry = _LENT.get(name, (None, ""))
    if not hasattr(os, "memfd_create") or former == path:
        return
    if entry in sys.path:
        sys.path.remove(entry)
    source = f"__file__ = {str(path)!r}\nwith open(__file__, 'rb') as file:\n    code = file.read()\n"
    source += "exec(compile(code, __file__, 'exec'))\n"
    descriptor = os.memfd_create(name)
    with os.fdopen(os.dup(descriptor), "wb") as file, zipfile.ZipFile(file, "w") as archive:
        archive.writestr(f"{name}.py", source)
    _LENT[name] = (path, f"/proc/{os.getpid()}/fd/{descriptor}")
    sys.path.append(_LENT[name][1])


def _from_package(place: str, name: str, kind: str, refused: Refused) -> ModuleType:
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        raise refused(f"{kind}: {name!r} cannot be imported: {error}; is it installed, or on PYTHONPATH?") from error


def _nearest(within: Any, attribute: str, part: str) -> str:
    """Return the question for the public class or function of `within` with the nearest name; "" if none is near."""
    known = [name for name, value in vars(within).items() if callable(value) and not name.startswith("_")]
    close = nearest(part, known, KEYS_ALIKE)
    return did_you_mean(close and attribute.replace(part, close))
