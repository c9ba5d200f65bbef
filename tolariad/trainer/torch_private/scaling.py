"""Whether a GradScaler has found gradients of an optimizer that are not finite, without waiting for the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tolariad.trainer.torch_private.choice import private

if TYPE_CHECKING:
    from torch import Tensor
    from torch.amp import GradScaler
    from torch.optim import Optimizer


def overflows_of(scaler: GradScaler, optimizer: Optimizer) -> list[Tensor]:
    """Return tensors of one element, above 0 if a gradient is not finite. Call it after `unscale_` of the optimizer.

    Public is only `GradScaler.step`, which waits for the answer. The public way looks at the gradients again.
    """
    found: Any = private(scaler, "_found_inf_per_device")
    if found is not None:
        return list(found(optimizer).values())
    gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    return [(~_values(gradient).isfinite()).any().float() for gradient in gradients]


def scale_of(scaler: GradScaler, like: Tensor) -> Tensor:
    """Return the scale as a tensor of one element on the device of `like`: 1 times the scale."""
    found: Tensor = scaler.scale(torch.ones((), device=like.device))
    return found


def _values(gradient: Tensor) -> Tensor:
    return gradient.coalesce().values() if gradient.is_sparse else gradient
