"""Running a model in another precision than its own: every operation that accepts it, and the others in theirs.

A trial computes in float64. A model's code may cast its activations, hold tensors that no module owns, and call
operations that have no version for float64. Promises: an operation is only called again, with other dtypes, if it has
raised an error. If it raises one for every dtype, that is the first of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from tolariad.trainer.pruning.copies import with_tensors

WIDE: Final[Mapping[torch.dtype, torch.dtype]] = {
    **dict.fromkeys((torch.float32, torch.float16, torch.bfloat16, torch.float64), torch.float64),
    **dict.fromkeys((torch.complex32, torch.complex64, torch.complex128), torch.complex128),
}
_NARROWER: Final = (
    {torch.float64: torch.float32, torch.complex128: torch.complex64},
    {torch.float64: torch.bfloat16, torch.float32: torch.bfloat16, torch.float16: torch.bfloat16},
    {torch.float64: torch.float16, torch.float32: torch.float16, torch.bfloat16: torch.float16},
)


def widened(value: Any) -> Any:
    """Return the value with its floating-point tensors in float64, and complex ones in complex128."""
    return cast(value, WIDE)


def cast(value: Any, dtypes: Mapping[torch.dtype, torch.dtype]) -> Any:
    """Return the value with its tensors of these dtypes in the others."""
    return with_tensors(value, lambda one: one.to(dtypes[one.dtype]) if one.dtype in dtypes else one)


class AnyPrecision(TorchFunctionMode):
    """In this mode an operation that refuses its dtypes is called with all in float64, else with all in a narrower one.

    A result in a narrower precision is widened again.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        try:
            return func(*args, **kwargs)
        except Exception as error:
            for dtypes in (WIDE, *_NARROWER):
                given = cast((args, kwargs), dtypes)
                if _dtypes(given) == _dtypes((args, kwargs)):
                    continue
                try:
                    return widened(func(*given[0], **given[1]))
                except Exception as again:  # noqa: BLE001 - the next dtype may do; else the first error is raised
                    error.add_note(f"with other dtypes: {type(again).__name__}: {again}")
            raise


def _dtypes(value: Any) -> list[torch.dtype]:
    found: list[torch.dtype] = []

    def note(one: Tensor) -> Tensor:
        found.append(one.dtype)
        return one

    with_tensors(value, note)
    return found
