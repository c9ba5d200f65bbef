"""tolariad: flight recorder and autopilot for PyTorch training.

Importing the package is cheap, because the public names are imported on first use. So a command that only reads a
journal loads neither torch nor asyncio. The import also checks that ``journal`` is the package installed with this one:
another distribution could use that name too.
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

# Each public name and the module that holds it.
_HOMES = {
    "Task": "tolariad.trainer.tasks.task",
    "Tolaria": "tolariad.library",
    "TrainingResult": "tolariad.library",
}


def __getattr__(name: str) -> Any:
    """Import the module that holds ``name`` on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the names of the package, including those not imported yet, for completion."""
    return sorted({*globals(), *_HOMES})


def check_journal_is_ours(found: Path | None, ours: Path) -> None:
    """Raise ImportError if the ``journal`` that Python would import is not the package beside this one.

    ``found`` is the folder or file of the ``journal`` on the path (None: there is none). ``ours`` is the folder that
    holds both packages. The message names the other package, its distribution if known, and what to do.
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
    """Return what ``import journal`` would import, a package's folder or a module's file, without importing it."""
    spec = importlib.util.find_spec("journal")
    if spec is None:
        return None
    folders = list(spec.submodule_search_locations or [])
    return Path(folders[0]) if folders else Path(spec.origin or "journal")


check_journal_is_ours(_journal_on_path(), Path(__file__).resolve().parent.parent)
