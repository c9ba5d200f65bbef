"""One optimizer update: forward, backward, what is measured, and the update itself.

Promises: loss and gradient norm reach the host in one transfer on a device, before the update.
It must not know: reports, gates, epochs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from tolariad.trainer.errors import SetupRefused

if TYPE_CHECKING:
    from tolariad.trainer.setup import Setup


class Measured(NamedTuple):
    """What a backward pass showed, on the host."""

    loss: float
    grad_norm: float


def forward_backward(setup: Setup, batch: Any) -> Measured:
    """Compute gradients for `batch`, which is on the device. Raises SetupRefused where the loss is no 0-dim tensor."""
    loss = _scalar(setup.task.loss(setup.model, batch))
    loss.backward()
    clip = getattr(setup.task, "clip_gradients", None)
    if callable(clip):
        return _to_host(loss, torch.as_tensor(clip(setup.model)))
    gradients = [p.grad for group in setup.optimizer.param_groups for p in group["params"] if p.grad is not None]
    if loss.device.type == "cpu":
        return Measured(loss.item(), _host_norm(gradients))
    return _to_host(loss, _device_norm(gradients, loss))


def _scalar(loss: Any) -> torch.Tensor:
    if isinstance(loss, dict):
        loss = loss.get("loss")
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        found = f"shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else f"a {type(loss).__name__}"
        raise SetupRefused(
            f"loss(model, batch) must give a tensor with one element (or a dict with `loss`), not {found}"
        )
    return loss.reshape(())


def _host_norm(gradients: Iterable[torch.Tensor]) -> float:
    """The 2-norm over all gradients; one call a tensor and a sum in Python floats is the cheapest on the CPU."""
    total = 0.0
    for gradient in gradients:
        norm = torch.linalg.vector_norm(_dense(gradient)).item()
        total += norm * norm
    return math.sqrt(total)


def _device_norm(gradients: list[torch.Tensor], loss: torch.Tensor) -> torch.Tensor:
    """The same on a device, without waiting for it."""
    if not gradients:
        return torch.zeros((), device=loss.device)
    norms = torch._foreach_norm([_dense(gradient) for gradient in gradients])  # noqa: SLF001 - clip_grad_norm_ uses it
    total: torch.Tensor = torch.linalg.vector_norm(torch.stack([norm.to(loss.device, torch.float32) for norm in norms]))
    return total


def _dense(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.coalesce().values() if gradient.is_sparse else gradient


def _to_host(loss: torch.Tensor, norm: torch.Tensor) -> Measured:
    """Both numbers in one transfer."""
    both = torch.stack([loss.detach().double(), norm.detach().reshape(()).to(loss.device).double()])
    values = both.tolist()
    return Measured(values[0], values[1])
