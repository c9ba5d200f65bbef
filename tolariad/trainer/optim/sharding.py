"""What an optimizer must know of sharded parameters (DTensor, FSDP): their local part, and sums over all parts.

Promises: a plain tensor passes through untouched; torch.distributed is never imported by a process that has not.
It must not know: optimizers.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def local(tensor: torch.Tensor, *, like: torch.Tensor | None = None) -> torch.Tensor:
    """The part of a tensor that lies here, sharing its storage; the tensor itself where it is not sharded.

    `like`: a parameter whose placement a gradient is first brought to, where it has another.
    """
    sharded = _dtensor(tensor)
    if sharded is None:
        return tensor
    model = _dtensor(like) if like is not None else None
    if model is not None and sharded.placements != model.placements:
        sharded = sharded.redistribute(model.device_mesh, model.placements)
    part = sharded.to_local()
    wait = getattr(part, "wait", None)  # an all-gather still under way
    return wait() if callable(wait) else part


def summed(counts: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """`counts` of the local part, summed over the parts of `parameter`; replicas count once."""
    sharded = _dtensor(parameter)
    if sharded is None:
        return counts
    tensor = sys.modules["torch.distributed.tensor"]
    spread = [
        tensor.Replicate() if placement.is_replicate() else tensor.Partial("sum") for placement in sharded.placements
    ]
    whole: torch.Tensor = tensor.DTensor.from_local(counts, sharded.device_mesh, spread, run_check=False).full_tensor()
    return whole


def _dtensor(tensor: Any) -> DTensor | None:
    module = sys.modules.get("torch.distributed.tensor")
    return tensor if module is not None and isinstance(tensor, module.DTensor) else None
