"""One operation on many tensors, as one call of torch: its functions `_foreach_…`.

A call for each tensor would take most of the time of small ones. The public way is that call for each tensor.

Every function takes the list that it changes first. Each further argument is one value for all tensors, or a list with
a value for each. Promise: the bits are the same both ways, in float32 and float64 on the CPU. In half precision torch's
functions may round a Python number before they multiply with it, which a call for each does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from tolariad.trainer.torch_private.choice import private

Together = Callable[..., Any]


def _one_by_one(each: Callable[..., Any]) -> Together:
    """Return a function that calls `each` for every tensor of a list. It returns the list of what the calls return."""

    def together(tensors: Sequence[Tensor], *others: Any, **options: Any) -> list[Any]:
        return [
            each(one, *(other[index] if isinstance(other, list | tuple) else other for other in others), **options)
            for index, one in enumerate(tensors)
        ]

    return together


def _norm(tensor: Tensor, order: float = 2, dtype: torch.dtype | None = None) -> Tensor:
    found: Tensor = torch.linalg.vector_norm(tensor, order, dtype=dtype)
    return found


# What `_foreach_NAME` does with one tensor.
EACH: Final[dict[str, Callable[..., Any]]] = {
    "add_": Tensor.add_,
    "addcdiv_": lambda one, numerator, divisor, value: one.addcdiv_(numerator, divisor, value=value),
    "addcmul_": lambda one, first, second, value: one.addcmul_(first, second, value=value),
    "copy_": Tensor.copy_,
    "div_": Tensor.div_,
    "lerp_": Tensor.lerp_,
    "mul_": Tensor.mul_,
    "norm": _norm,
    "sqrt": Tensor.sqrt,
}


def _function(name: str) -> Together:
    found: Together | None = private(torch, f"_foreach_{name}", "many small tensors take a call each")
    return found or _one_by_one(EACH[name])


add_: Final = _function("add_")
addcdiv_: Final = _function("addcdiv_")
addcmul_: Final = _function("addcmul_")
copy_: Final = _function("copy_")
div_: Final = _function("div_")
lerp_: Final = _function("lerp_")
mul_: Final = _function("mul_")
norm: Final = _function("norm")
sqrt: Final = _function("sqrt")
