"""torch.compile for runs that must give the same result after a restart.

Promises: parameters and buffers keep their names (no `_orig_mod.`). The code for a shape does not depend on the shapes
seen before, so a process that resumes within an epoch computes the same.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch

from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.process.released import at_end
from tolariad.trainer.torch_private import compiler

if TYPE_CHECKING:
    from torch import nn

# The greatest number of shapes, of training and validation together. A batch of another size is another shape.
_GRAPHS_MAX: Final = 64


def compile_forward(model: nn.Module, *, strict: bool, backend: str | None = None) -> None:
    """Compile `model.forward` at its first call, and again for each new shape.

    `strict`: too many shapes are an error. Otherwise further shapes run without the compiler, which gives other bits.
    The first call raises SetupRefused if the compiler does not work here.
    """
    compiler.repeat_choices(strict=strict)
    # No graph with dynamic shapes: it would depend on the shapes that this process has seen so far.
    options: dict[str, Any] = {"dynamic": False} | compiler.limit_graphs(_GRAPHS_MAX, strict=strict)
    if backend is not None:
        options["backend"] = backend
    # Compile the method, not the module: a wrapped module would add `_orig_mod.` to every name, and Module.compile does
    # not cover torch's own containers.
    own = vars(model).get("forward")
    try:
        compiled = torch.compile(model.forward, **options)
    except RuntimeError as error:
        raise _refused(error) from error

    def first(*args: Any, **kwargs: Any) -> Any:
        """Make the first pass, in which the compiler works or fails. Further passes call the compiled method itself."""
        try:
            found = compiled(*args, **kwargs)
        except Exception as error:
            if compiler.is_its_own(error):
                raise _refused(error) from error
            raise
        model.forward = compiled
        return found

    model.forward = first
    at_end(partial(_put_back, model, own))


def _put_back(model: nn.Module, own: Any) -> None:
    """Give the model its own forward pass again: its class's, unless it had another one."""
    if own is None:
        vars(model).pop("forward", None)
    else:
        model.forward = own


def _refused(error: Exception) -> SetupRefused:
    """Return what the user reads if the compiler does not work, with what it says."""
    said = " ".join([line.strip() for line in str(error).splitlines() if line.strip()][:2])
    return SetupRefused(
        f"compile is true, but torch's compiler fails at the first batch ({type(error).__name__}: {said}). It needs a "
        "C++ compiler on the CPU, Triton on CUDA, and a version of Python that this torch knows. Install what is "
        "missing, or set compile: false"
    )
