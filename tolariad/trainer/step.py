"""The gradients of one optimizer update: forward and backward over its micro-batches, and what is measured.

Promises: loss and gradient norm reach the host in one transfer on a device, before the update; gradients are those of
the mean over the micro-batches, however many there are. It must not know: reports, gates, epochs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from tolariad.trainer.data import to_device
from tolariad.trainer.errors import SetupRefused

if TYPE_CHECKING:
    from tolariad.trainer.setup import Setup


class Measured(NamedTuple):
    """What a backward pass showed, on the host. `overflow`: fp16 gradients are not finite, no update may be made."""

    loss: float
    grad_norm: float
    overflow: bool = False


def forward_backward(setup: Setup, batches: Sequence[Any]) -> Measured:
    """Compute the gradients of one update over `batches`, its micro-batches, as the feed gives them.

    The loss is the mean of theirs, each weighing the same. Raises SetupRefused where a loss is no 0-dim tensor.
    """
    losses = [_backward(setup, batch, len(batches)) for batch in batches]
    setup.rates.drop_frozen_gradients()
    overflow = setup.scaling.unscale(setup.optimizer) if setup.scaling is not None else None
    clip = getattr(setup.task, "clip_gradients", None)
    if callable(clip):
        return _to_host(losses, torch.as_tensor(clip(setup.model)), overflow)
    gradients = [p.grad for group in setup.optimizer.param_groups for p in group["params"] if p.grad is not None]
    if losses[0].device.type == "cpu":
        loss = sum(loss.item() for loss in losses) / len(losses)
        return _measured(loss, _host_norm(gradients), overflow is not None and bool(overflow))
    return _to_host(losses, _device_norm(gradients, losses[0]), overflow)


def update(setup: Setup, *, skip: bool) -> None:
    """Make the update from the gradients there are, or skip it; the scale of an fp16 run moves on either way."""
    if not skip:
        setup.optimizer.step()
    if setup.scaling is not None:
        setup.scaling.move_on()


def _backward(setup: Setup, batch: Any, parts: int) -> torch.Tensor:
    """Add one micro-batch's share, one of `parts`, to the gradients; its own loss, without the graph."""
    with setup.forward():
        loss = _scalar(setup.task.loss(setup.model, to_device(batch, setup.device)))
    share = loss if parts == 1 else loss / parts
    if setup.scaling is None:
        share.backward()
    else:
        setup.scaling.backward(share)
    return loss.detach()


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


def _to_host(losses: list[torch.Tensor], norm: torch.Tensor, overflow: torch.Tensor | None) -> Measured:
    """The mean loss, the norm and whether gradients overflowed, in one transfer."""
    loss = torch.stack([loss.double() for loss in losses]).mean()
    found = (norm,) if overflow is None else (norm, overflow)
    values = torch.stack([loss, *(one.detach().reshape(()).to(loss.device).double() for one in found)]).tolist()
    return _measured(values[0], values[1], overflow is not None and values[2] > 0)


def _measured(loss: float, norm: float, overflow: bool) -> Measured:  # noqa: FBT001 - private, as the fields are
    """With one NaN for all of them: which bits a NaN has may change from one process to the next."""
    return Measured(math.nan if math.isnan(loss) else loss, math.nan if math.isnan(norm) else norm, overflow)
