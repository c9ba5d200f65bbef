"""torch.compile for a run that must come out the same after a restart.

Promises: parameters and buffers keep their names (no `_orig_mod.`); a shape gets the same code whether it is met first or
last, so a process that resumes in mid-epoch computes what the one before would have; whoever watches for hangs is told
while the compiler works. It must not know: steps, the channel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import torch

if TYPE_CHECKING:
    from torch import nn

# Shapes, training and evaluation together; a batch of another size is one more.
_GRAPHS_MAX: Final = 64


def compile_forward(model: nn.Module, *, strict: bool, backend: str | None = None) -> None:
    """Compile `model.forward` at its first call, and once more for each further shape.

    `strict`: more shapes than that are an error instead of steps that go on without the compiler, in other bits.
    """
    import torch._dynamo.config as limits

    limits.fail_on_recompile_limit_hit = strict
    # Never one graph for all shapes: which one it would be depends on the shapes that this process has met so far.
    options: dict[str, Any] = {"dynamic": False, "recompile_limit": _GRAPHS_MAX} | (
        {} if backend is None else {"backend": backend}
    )
    # The method, not the module: a wrapping module would put `_orig_mod.` before every name, and Module.compile passes
    # by what torch's own containers do.
    model.forward = torch.compile(model.forward, **options)


@contextmanager
def compiler_watched(begin: Callable[[], None], end: Callable[[], None]) -> Iterator[None]:
    """Inside, `begin` is called before the compiler works and `end` after it; also from a thread of the backward pass."""
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
