"""Start without importing torch's compiler, which takes two seconds and is not needed to train.

torch's optimizers import `torch._dynamo` for two functions, `disable` and `graph_break`. Both do nothing outside
compiled code. `init_process_group` and the constructor of DistributedDataParallel ask for two more: one drops what the
compiler remembers, the other returns a setting of the compiler. A stand-in module provides these four and imports the
compiler at the first use of anything else. A trainer that restarts after a crash is back that much sooner.

Promises: a task that uses the compiler finds it as if the stand-in had never been there. If torch asks for the two
functions in another way than the tests know, there is no stand-in: a start is two seconds longer then.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Iterable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
from typing import Any, Final

import torch

from tolariad.trainer.torch_private.choice import private

_NAME: Final = "torch._dynamo"
# What torch's own code calls, with which argument, and where it keeps the answer.
_KNOWN: Final = {"disable", "wrapping", "__dynamo_disable"}
_compiler: ModuleType | None = None
# Functions for which torch keeps the answer of `disable`; the compiler has to give its own as soon as it is there.
_answered: Final[list[Any]] = []


def _graph_break(msg: str = "") -> None:
    """Do nothing until the compiler is imported. Code that took this function earlier may call it in compiled code."""
    if _compiler is not None:
        _compiler.graph_break(msg)


def _disable(  # torch's signature
    fn: Any = None,
    recursive: bool = True,  # noqa: FBT001, FBT002
    *,
    reason: str | None = None,
    wrapping: bool = True,
) -> Any:
    """Return the function unchanged if torch itself asks; import the compiler for any other caller."""
    if fn is None or wrapping or _compiler is not None:
        return _real().disable(fn, recursive, reason=reason, wrapping=wrapping)
    _answered.append(fn)
    return fn


class _Part(ModuleType):
    """Stands for a module of the compiler of which torch's own code uses one function."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__path__":
            raise AttributeError(name)
        return getattr(self._real, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._real, name, value)

    def __dir__(self) -> Iterable[str]:
        return dir(self._real)

    @property
    def _real(self) -> ModuleType:
        """The module, once the compiler is imported. Code that took this one earlier gets all from there."""
        _real()
        return importlib.import_module(self.__name__)


class _Standin(ModuleType):
    """Provides the two functions, and imports the compiler for any other name but the two parts."""

    def __getattr__(self, name: str) -> Any:
        # The import system asks every module for these; only `__path__` means that a submodule is wanted.
        if name.startswith("__") and name != "__path__":
            raise AttributeError(name)
        # While the compiler is being imported, its own modules look for the real ones here.
        if isinstance(sys.modules.get(_NAME), _Standin) and (part := _parts.get(f"{_NAME}.{name}")) is not None:
            return part
        return getattr(_real(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(_real(), name, value)

    def __dir__(self) -> Iterable[str]:
        return dir(_real())


class _Loaded(Loader):
    """Loads nothing: the module already exists."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self._spec = module, module.__spec__

    def create_module(self, _spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        # The compiler's configuration module refuses to set attributes, and so has kept its own.
        with contextlib.suppress(AttributeError):
            module.__spec__ = self._spec


class _Submodules(MetaPathFinder):
    """Prevents `import torch._dynamo.config` from creating that submodule a second time.

    The statement asks the stand-in for its `__path__`, which imports the compiler and with it the submodule. But the
    import system has already seen that the submodule is missing, and would create it.
    """

    def find_spec(self, fullname: str, _path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        # `importlib.reload` passes a target, and does want a new module.
        if target is not None or not fullname.startswith(f"{_NAME}.") or fullname not in sys.modules:
            return None
        return ModuleSpec(fullname, _Loaded(sys.modules[fullname]))


# By module: what torch asks of it. The compiler remembers nothing before it is there; who sets the mode imports it.
_PARTS: Final[dict[str, dict[str, Any]]] = {
    f"{_NAME}.trace_rules": {"clear_lru_cache": lambda: None},
    f"{_NAME}.utils": {"get_optimize_ddp_mode": lambda: "ddp_optimizer"},
}
_parts: Final[dict[str, _Part]] = {}


def _real() -> ModuleType:
    """Import the compiler, and let it replace the stand-in."""
    global _compiler
    standin = sys.modules.get(_NAME)
    if isinstance(standin, _Standin):
        del sys.modules[_NAME]
    module = importlib.import_module(_NAME)
    setattr(torch, "_dynamo", module)  # noqa: B010 - torch declares no such name for mypy
    _compiler = module
    if isinstance(standin, _Standin):
        # Code that still refers to the stand-in gets the compiler's functions from now on.
        standin.__dict__.pop("disable", None)
        standin.__dict__.pop("graph_break", None)
    for part in _parts.values():
        for name in _PARTS[part.__name__]:
            part.__dict__.pop(name, None)
    while _answered:
        _answered.pop().__dict__.pop("__dynamo_disable", None)
    return module


def install() -> bool:
    """Put the stand-in in place, unless the compiler is imported or torch asks otherwise.

    Return whether it is there.
    """
    if _NAME in sys.modules or not asks_as_known():
        return isinstance(sys.modules.get(_NAME), _Standin)
    for name, functions in _PARTS.items():
        _parts[name] = _Part(name)
        _parts[name].__dict__.update(functions)
    standin = _Standin(_NAME, __doc__)
    standin.__dict__.update(disable=_disable, graph_break=_graph_break, __spec__=importlib.util.find_spec(_NAME))
    sys.modules[_NAME] = standin
    setattr(torch, "_dynamo", standin)  # noqa: B010
    sys.meta_path.insert(0, _Submodules())
    return True


def asks_as_known() -> bool:
    """Return whether torch keeps the answer of `disable` in the attribute that is cleared when the compiler comes."""
    asks = private(torch, "_disable_dynamo")
    pending, named = [getattr(asks, "__code__", None)], set[object]()
    while pending:
        code = pending.pop()
        if isinstance(code, CodeType):
            pending += code.co_consts
            named.update(code.co_names, *(one if isinstance(one, tuple) else (one,) for one in code.co_consts))
    return _KNOWN <= named
