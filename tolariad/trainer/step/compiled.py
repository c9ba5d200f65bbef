"""torch.compile for runs that must give the same result after a restart.

Promises: parameters and buffers keep their names (no `_orig_mod.`). The code for a shape does not depend on the shapes
seen before, so a process that resumes within an epoch computes the same. The watch for hangs is told while the compiler
works.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import torch

if TYPE_CHECKING:
    from torch import nn

# The greatest number of shapes, of training and validation together. A batch of another size is another shape.
_GRAPHS_MAX: Final = 64


def compile_forward(model: nn.Module, *, strict: bool, backend: str | None = None) -> None:
    """Compile `model.forward` at its first call, and again for each new shape.

    `strict`: too many shapes are an error. Otherwise further shapes run without the compiler, which gives other bits.
    """
    import torch._dynamo.config as limits

    limits.fail_on_recompile_limit_hit = strict
    # No graph with dynamic shapes: it would depend on the shapes that this process has seen so far.
    options: dict[str, Any] = {"dynamic": False, "recompile_limit": _GRAPHS_MAX} | (
        {} if backend is None else {"backend": backend}
    )
    # Compile the method, not the module: a wrapped module would add `_orig_mod.` to every name, and Module.compile does
    # not cover torch's own containers.
    model.forward = torch.compile(model.forward, **options)


@contextmanager
def compiler_watched(begin: Callable[[], None], end: Callable[[], None]) -> Iterator[None]:
    """In the block, call `begin` before the compiler works and `end` after it, possibly in a backward pass's thread."""
    from torch._dynamo.callback import callback_handler

    def begun(_: object) -> None:
        begin()

    def ended(_: object) -> None:
        end()

    callback_handler.register_start_callback(begun)
    callback_handler.register_end_callback(ended)
    try:
        yield
    finally:
        callback_handler.remove_start_callback(begun)
        callback_handler.remove_end_callback(ended)
