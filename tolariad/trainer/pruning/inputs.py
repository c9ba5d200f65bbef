"""The inputs of a model as plain data, and noise of the same shapes: at a boundary no batch is at hand.

Promises: noise is a pure function of the description and the generator. Integers and truth values lie in runs of values
that the batch had, so that they are valid indices and labels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from tolariad.trainer.pruning.units import PruningRefused

if TYPE_CHECKING:
    from collections.abc import Mapping

_PLAIN: Final = (bool, int, float, str, type(None))
_RUNS_MAX: Final = 8


def described(value: Any) -> Any:
    """Return the description of an argument, as JSON has it. Raises PruningRefused for a kind that is not known."""
    if isinstance(value, torch.Tensor):
        ranged = not (value.is_floating_point() or value.is_complex()) and value.numel() > 0
        dtype, runs = str(value.dtype).removeprefix("torch."), _runs(value) if ranged else [[0, 0]]
        return {"tensor": {"dtype": dtype, "runs": runs, "shape": list(value.shape)}}
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


def _runs(values: torch.Tensor) -> list[list[int]]:
    """Return first and last of each run of integers that occur. Of too many the narrowest gaps are closed.

    Labels are often -100 where nothing is to be learnt. What lies between that and 0 is no label, so it stays a gap.
    """
    known = values.detach().cpu().to(torch.int64).unique()
    gaps = known.diff()
    gaps[gaps.gt(1) & known[:-1].lt(0) & known[1:].ge(0)] = torch.iinfo(torch.int64).max
    after = gaps.topk(min(_RUNS_MAX - 1, int((gaps > 1).sum()))).indices.sort().values
    firsts, lasts = torch.cat([known[:1], known[after + 1]]), torch.cat([known[after], known[-1:]])
    return torch.stack([firsts, lasts], 1).tolist()


def _tensor(one: Mapping[str, Any], generator: torch.Generator) -> torch.Tensor:
    dtype, shape = getattr(torch, one["dtype"]), tuple(one["shape"])
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    if dtype.is_complex:
        return torch.randn(shape, dtype=dtype, generator=generator)
    # An older version recorded the range alone.
    firsts, lasts = torch.tensor(one.get("runs") or [[one["least"], one["most"]]]).unbind(1)
    ends = (lasts - firsts + 1).cumsum(0)
    drawn = torch.randint(int(ends[-1]), shape, generator=generator)
    # In which run each drawn number lies.
    at = torch.searchsorted(ends, drawn, right=True)
    return (lasts[at] + 1 + drawn - ends[at]).to(dtype)
