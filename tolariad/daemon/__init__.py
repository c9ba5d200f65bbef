"""The composition root: `run` connects configuration, journal, kernel, supervisor, control server and telemetry.

The public names are imported on first use: a program that trains needs some modules of this package, and no daemon.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tolariad.daemon.request import FolderLost, From, Progress, RunRequest, StartRefused
    from tolariad.daemon.running import run

__all__ = ["FolderLost", "From", "Progress", "RunRequest", "StartRefused", "run"]

_HOMES: Final = dict.fromkeys(__all__, "tolariad.daemon.request") | {"run": "tolariad.daemon.running"}


def __getattr__(name: str) -> Any:
    """Import the module that holds ``name``."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
