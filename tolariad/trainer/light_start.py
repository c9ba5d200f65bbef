"""Starting without torch's compiler: its import costs two seconds and is not needed to train.

torch's optimizers import `torch._dynamo` for two functions that do nothing outside compiled code, `disable` and
`graph_break`. In its place stands a module that has these two and becomes the real one at the first touch of anything
else, so a task that compiles finds the compiler. A trainer that restarts after a crash is back that much sooner.
It must not know: optimizers, tasks.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final, TypeVar

import torch

_NAME: Final = "torch._dynamo"
F = TypeVar("F", bound=Callable[..., Any])


def _graph_break(*_: Any, **__: Any) -> None:
    """What it is outside compiled code."""


def _disable(fn: F | None = None, *_: Any, **__: Any) -> F | Callable[[F], F]:
    """Outside compiled code a function that is not compiled is the function itself."""
    return (lambda inner: inner) if fn is None else fn


class _Standin(ModuleType):
    """Answers the two; becomes the real module for the rest."""

    graph_break = staticmethod(_graph_break)
    disable = staticmethod(_disable)

    def __getattr__(self, name: str) -> Any:
        # The import system itself asks for these of every module; only `__path__` means that something below is wanted.
        if name.startswith("__") and name != "__path__":
            raise AttributeError(name)
        return getattr(_real(), name)


def lift() -> None:
    """Import the compiler, if it is not there yet. Before any submodule of it: `import torch._dynamo.config` finds the
    stand-in's place taken while the import is under way, and makes that submodule a second time.
    """
    _real()


def _real() -> ModuleType:
    """Import the compiler in the stand-in's place."""
    if isinstance(sys.modules.get(_NAME), _Standin):
        del sys.modules[_NAME]
    module = importlib.import_module(_NAME)
    setattr(torch, "_dynamo", module)  # noqa: B010 - torch declares no such name for mypy
    return module


def install() -> None:
    """Put the stand-in in place, unless the compiler is imported already."""
    if _NAME in sys.modules:
        return
    standin = _Standin(_NAME, __doc__)
    sys.modules[_NAME] = standin
    setattr(torch, "_dynamo", standin)  # noqa: B010
