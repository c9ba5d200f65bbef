"""The backward pass and the update without what torch wraps around them for a profiler, for hooks, for a device's threads.

Behind a step's arithmetic the caches are cold, and those wrappers take some 90 us of a step although nothing of what they
serve is there. Promises: the same kernels with the same arguments, so the same bits; where any of it is there, or anybody has
put something else in their place, torch's own is called. It must not know: what a step is made for.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.autograd.variable import Variable
from torch.optim import Optimizer

from tolariad.trainer.lr.guard import guard_alone

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def _nothing() -> None:
    """Has the wrapper looked at, which every class of optimizers gets around its step."""


# Names of torch's own that another version may not have: then nothing is left out there.
_engine: Final = getattr(Variable, "_execution_engine", None)
_run_backward: Final[Callable[..., Any] | None] = getattr(_engine, "run_backward", None)
_is_profiling: Final[Callable[[], bool]] = getattr(torch._C._autograd, "_profiler_enabled", lambda: True)  # noqa: SLF001
_wrap: Final[Callable[..., Any]] = getattr(Optimizer, "profile_hook_step", lambda _: len)
_WRAPPER: Final = getattr(_wrap(_nothing), "__code__", object())
_post_hooks: Final[Mapping[int, Any]] = getattr(
    sys.modules[Optimizer.__module__], "_global_optimizer_post_hooks", {0: None}
)

_TENSOR_BACKWARD: Final = torch.Tensor.backward
_BACKWARD: Final = torch.autograd.backward
# What a loss is differentiated by, by its type. Torch makes one anew each time.
_ones: Final[dict[torch.dtype, torch.Tensor]] = {}


def backward(loss: torch.Tensor) -> None:
    """`loss.backward()` of a loss on the CPU that has no dimension; not for compiled models."""
    if (
        _run_backward is None
        or type(loss) is not torch.Tensor
        or torch.Tensor.backward is not _TENSOR_BACKWARD
        or torch.autograd.backward is not _BACKWARD
    ):
        loss.backward()
        return
    one = _ones.get(loss.dtype)
    if one is None:
        one = _ones[loss.dtype] = torch.ones((), dtype=loss.dtype)
    _run_backward((loss,), (one,), False, False, (), allow_unreachable=True, accumulate_grad=True)


def step(optimizer: Optimizer) -> None:
    """`optimizer.step()`."""
    outer = type(optimizer).step
    if (
        getattr(outer, "__code__", None) is not _WRAPPER
        or "step" in optimizer.__dict__
        or optimizer._optimizer_step_post_hooks  # noqa: SLF001
        or _post_hooks
        or _is_profiling()
        or (guard := guard_alone(optimizer)) is None
    ):
        optimizer.step()
        return
    guard.before_plain_step()
    outer.__wrapped__(optimizer)  # type: ignore[attr-defined]
