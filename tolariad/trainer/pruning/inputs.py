"""The inputs of a model as plain data, and noise of the same shapes: at a boundary no batch is at hand.

Promises: noise is a pure function of the description and the generator. Integers and truth values stay within the range
that the batch had, so that they are valid indices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from tolariad.trainer.pruning.units import PruningRefused

if TYPE_CHECKING:
    from collections.abc import Mapping

_PLAIN: Final = (bool, int, float, str, type(None))


def described(value: Any) -> Any:
    """Return the description of an argument, as JSON has it. Raises PruningRefused for a kind that is not known."""
    if isinstance(value, torch.Tensor):
        ranged = not (value.is_floating_point() or value.is_complex()) and value.numel() > 0
        least, most = (int(one) for one in value.to(torch.int64).aminmax()) if ranged else (0, 0)
        dtype = str(value.dtype).removeprefix("torch.")
        return {"tensor": {"dtype": dtype, "least": least, "most": most, "shape": list(value.shape)}}
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {"dict": {key: described(item) for key, item in value.items()}}
    if type(value) in (list, tuple):
        return {type(value).__name__: [described(item) for item in value]}
    if isinstance(value, _PLAIN):
        return {"value": value}
    raise PruningRefused(
        f"the model has an input of type {type(value).__name__}; tensors, numbers, text, and lists, tuples and dicts "
        "of them can be recorded"
    )


def noise_like(description: Any, generator: torch.Generator, device: torch.device) -> Any:
    """Return an argument of this description: floats are normal, integers uniform. Raises PruningRefused."""
    match description:
        case {"tensor": one}:
            return _tensor(one, generator).to(device)
        case {"dict": items}:
            return {key: noise_like(item, generator, device) for key, item in items.items()}
        case {"list": items}:
            return [noise_like(item, generator, device) for item in items]
        case {"tuple": items}:
            return tuple(noise_like(item, generator, device) for item in items)
        case {"value": value}:
            return value
        case _:
            raise PruningRefused(f"the inputs of the model are not recorded, but {description!r}")


def _tensor(one: Mapping[str, Any], generator: torch.Generator) -> torch.Tensor:
    dtype, shape = getattr(torch, one["dtype"]), tuple(one["shape"])
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    if dtype.is_complex:
        return torch.randn(shape, dtype=dtype, generator=generator)
    return torch.randint(one["least"], one["most"] + 1, shape, generator=generator).to(dtype)
