"""Settings of torch's compiler, and its announcements.

Nothing here imports the compiler before `limit_graphs`, `watched` or `repeat_choices` is called.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

from tolariad.trainer.torch_private import choice
from tolariad.trainer.torch_private.choice import private


def _module(name: str) -> Any:
    """Return a module of torch; None if this torch has no such module, or only public ways are wanted."""
    if choice.ONLY_PUBLIC:
        return None
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def limit_graphs(count: int, *, strict: bool) -> dict[str, Any]:
    """Allow so many shapes. Return the arguments that torch.compile needs for it.

    `strict`: more shapes are an error. Otherwise further ones run without the compiler. The public way has no error; if
    `torch.compile` takes no limit, as before torch 2.12, it has torch's own, mostly 8. Torch says when it is reached.
    """
    limits = _module("torch._dynamo.config")
    if hasattr(limits, "fail_on_recompile_limit_hit"):
        limits.fail_on_recompile_limit_hit = strict
    # An argument since torch 2.12; before, one limit for the whole process.
    if "recompile_limit" in inspect.signature(torch.compile).parameters:
        return {"recompile_limit": count}
    if hasattr(limits, "recompile_limit"):
        limits.recompile_limit = count
    return {}


def repeat_choices(*, strict: bool) -> None:
    """With `strict`, let the compiler not choose between kernels by measuring them, if their bits differ.

    A process that resumes could measure otherwise. The public way is `use_deterministic_algorithms`, which a strict run
    has anyway: the compiler then fixes the choices for sums.
    """
    settings = _module("torch._inductor.config")
    if hasattr(settings, "deterministic"):
        settings.deterministic = strict


def is_its_own(error: BaseException) -> bool:
    """Return whether the compiler failed, and not the code that it compiled. The public way knows by the same names.

    Its errors have no public names; the names of their modules are part of every traceback.
    """
    parts = ("torch._dynamo.", "torch._inductor.")
    return any(kind.__module__.startswith(parts) for kind in type(error).__mro__)


@contextmanager
def watched(begin: Callable[[], None], end: Callable[[], None]) -> Iterator[None]:
    """In the block, call `begin` before the compiler works and `end` after it, possibly in a backward pass's thread.

    There is no public way: nothing is called then.
    """
    off = "the watch for hangs does not know when the compiler works"
    handler = private(_module("torch._dynamo.callback"), "callback_handler", off)
    if handler is None:
        yield
        return

    def begun(_: object = None) -> None:
        begin()

    def ended(_: object = None) -> None:
        end()

    handler.register_start_callback(begun)
    handler.register_end_callback(ended)
    try:
        yield
    finally:
        # `torch.compiler.reset`, which a task may call, has forgotten them.
        with suppress(ValueError):
            handler.remove_start_callback(begun)
            handler.remove_end_callback(ended)
