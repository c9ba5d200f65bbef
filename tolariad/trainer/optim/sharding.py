"""Sharded parameters (DTensor, FSDP) in an optimizer: their local part, and sums over all parts.

Promises: a plain tensor is returned unchanged. torch.distributed is not imported unless the process has imported it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def local(tensor: torch.Tensor, *, like: torch.Tensor | None = None) -> torch.Tensor:
    """Return the local part of a tensor, with the same storage; the tensor itself if it is not sharded.

    `like`: a parameter. A gradient with another placement is first redistributed to this parameter's.
    """
    sharded = _dtensor(tensor)
    if sharded is None:
        return tensor
    model = _dtensor(like) if like is not None else None
    if model is not None and sharded.placements != model.placements:
        sharded = sharded.redistribute(model.device_mesh, model.placements)
    part = sharded.to_local()
    wait = getattr(part, "wait", None)  # an all-gather may be in flight
    return wait() if callable(wait) else part


def summed(counts: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """Return the sum of `counts` over all parts of `parameter`. Replicas count once."""
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
