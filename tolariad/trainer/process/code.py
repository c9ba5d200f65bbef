"""The files of the user's program, by which a resume knows that its code was edited.

They are those of loaded modules that belong to no library: the script, the task's file, and what these import. Their
names are those of the modules, so a program that was moved has the same. A program that has no file, such as a
notebook, has none.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from blake3 import blake3

from tolariad.core import messages as m
from tolariad.trainer.process.own_frames import is_own_file

if TYPE_CHECKING:
    from types import ModuleType

FILES_MAX: Final = 256
_HASH_CHARACTERS: Final = 16
# By file, time of change and size: a program may start many runs.
_known: dict[tuple[str, int, int], str] = {}


def code_of(task: Any) -> tuple[m.CodeFile, ...]:
    """Return the files of the program that trains `task`, sorted by name; () if it has none of its own."""
    roots = (sys.modules.get("__main__"), sys.modules.get(type(task).__module__))
    if not any(_file_of(module) for module in roots):
        return ()
    found = {}
    for name, module in list(sys.modules.items()):
        path = _file_of(module)
        if path and (hashed := _hash_of(path)):
            found[_shown(name, path)] = hashed
    return tuple(m.CodeFile(name, found[name]) for name in sorted(found)[:FILES_MAX])


def _file_of(module: ModuleType | None) -> str:
    """Return the module's source file if it is the user's, else the empty string."""
    path = getattr(module, "__file__", None)
    return path if isinstance(path, str) and path.endswith(".py") and is_own_file(path) else ""


def _shown(name: str, path: str) -> str:
    """Return the module's name as a path. The script, and a file that a configuration names, have other names."""
    stem = Path(path).stem
    parts = name.split(".")
    if stem == "__init__":
        return "/".join([*parts, "__init__.py"])
    return f"{'/'.join(parts)}.py" if parts[-1] == stem else Path(path).name


def _hash_of(path: str) -> str:
    try:
        stat = Path(path).stat()
        key = (path, stat.st_mtime_ns, stat.st_size)
        if key not in _known:
            _known[key] = blake3(Path(path).read_bytes()).hexdigest()[:_HASH_CHARACTERS]
        return _known[key]
    except OSError:
        return ""  # removed since it was imported, or in an archive
