"""The libraries that this process has loaded, with their versions.

A library is a module from where the interpreter installs packages, or one that lies beside the metadata that an
installer writes, as `pip install --target` does. The standard library, this package and the user's own files are none.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Final

from tolariad.core import messages as m
from tolariad.core.calc.bounds import LIBRARIES_MAX
from tolariad.trainer.process.own_frames import is_own_file

_CHARACTERS_MAX: Final = 128
# The environment has these by fields of their own.
_KNOWN: Final = frozenset({"torch", "numpy", "tolariad", "journal"})


def libraries() -> tuple[m.Library, ...]:
    """Return name and version of each loaded library that tells its version, sorted by name."""
    return tuple(m.Library(name, version) for name, version in sorted(_found())[:LIBRARIES_MAX])


def _found() -> Iterator[tuple[str, str]]:
    for name, module in list(sys.modules.items()):
        if "." in name or name.startswith("_") or name in _KNOWN or name in sys.stdlib_module_names:
            continue
        if version := _version_of(name, module):
            yield name[:_CHARACTERS_MAX], version[:_CHARACTERS_MAX]


def _version_of(name: str, module: ModuleType) -> str:
    """Return the version that the module names, or else its installer; "" for the user's own code."""
    place = getattr(module, "__file__", None)
    if not isinstance(place, str):
        return ""
    told = vars(module).get("__version__")
    if isinstance(told, str) and not is_own_file(place):
        return told
    try:
        found = metadata.distribution(name)
        is_of_it = Path(place).is_relative_to(Path(str(found.locate_file(""))))
        return str(found.version or "") if is_of_it else ""
    except (metadata.PackageNotFoundError, ValueError, OSError, KeyError):
        return ""
