"""tolariad: flight recorder and autopilot for PyTorch training.

Importing the package costs next to nothing: the public names resolve on first use, so a command that only reads a
journal loads neither torch nor asyncio. Importing it also makes sure that ``journal`` is the package installed with it:
that name is short, and another distribution that carries it would otherwise be read as if it were ours.
"""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tolariad.library import Tolaria, TrainingResult
    from tolariad.trainer.tasks.task import Task

__version__ = "0.1.0"
__all__ = ["Task", "Tolaria", "TrainingResult", "__version__"]

# Public name: the module that holds it. Only here is a root, or the room with torch in it, reached from the front door.
_HOMES = {
    "Task": "tolariad.trainer.tasks.task",
    "Tolaria": "tolariad.library",
    "TrainingResult": "tolariad.library",
}


def __getattr__(name: str) -> Any:
    """Import the module that holds ``name`` when it is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the lazy names too, so that completion finds them."""
    return sorted({*globals(), *_HOMES})


def check_journal_is_ours(found: Path | None, ours: Path) -> None:
    """Raise ImportError when the ``journal`` that Python would import is not the package beside this one.

    ``found`` is the folder or file of the ``journal`` on the path (None: there is none), ``ours`` the folder that holds
    both packages. The message names the other one, its distribution where that is known, and the way out.
    """
    if found is None or found.resolve() == ours / "journal":
        return
    from importlib.metadata import packages_distributions

    owners = sorted({owner for owner in packages_distributions().get("journal", []) if owner != "tolariad"})
    who = f"the package {', '.join(owners)}" if owners else "another package"
    raise ImportError(
        f"tolariad needs its own package 'journal' in {ours}, but {who} comes first on the path: {found}. "
        "Uninstall it, or give tolariad a virtual environment of its own."
    )


def _journal_on_path() -> Path | None:
    """Return what ``import journal`` would read, a package's folder or a module's file, without importing it."""
    spec = importlib.util.find_spec("journal")
    if spec is None:
        return None
    folders = list(spec.submodule_search_locations or [])
    return Path(folders[0]) if folders else Path(spec.origin or "journal")


check_journal_is_ours(_journal_on_path(), Path(__file__).resolve().parent.parent)
