"""The number format of forward passes: fp32, or bf16 and fp16 by torch.autocast, fp16 with a scaled loss.

Promises: parameters, gradients, optimizer state and averages stay as the model has them; only what autocast knows to be
safe is computed in half precision, in training and in validation alike; a gradient that overflowed fp16 is known before
the update. It must not know: models, steps, what follows from an overflow.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

if TYPE_CHECKING:
    from tolariad.core.settings.model import Settings

Forward: TypeAlias = Callable[[], AbstractContextManager[Any]]


def forward_context(settings: Settings, device: torch.device) -> Forward:
    """What makes the context of one forward pass."""
    if settings.precision == "fp32":
        nothing = nullcontext()
        return lambda: nothing
    dtype = torch.float16 if settings.precision == "fp16" else torch.bfloat16
    return lambda: torch.autocast(device.type, dtype=dtype)


class Scaling:
    """The loss scale of an fp16 run, torch's GradScaler. In a step: `backward`, `unscale`, the update or none, `move_on`.

    GradScaler.step would ask the device by itself whether to update; here that answer travels with loss and norm.
    """

    def __init__(self, device: torch.device) -> None:
        self._scaler = torch.amp.GradScaler(device.type)
        self._looked = False

    def backward(self, loss: torch.Tensor) -> None:
        """Compute the gradients of the scaled loss."""
        self._scaler.scale(loss).backward()

    def unscale(self, optimizer: torch.optim.Optimizer) -> torch.Tensor:
        """Divide the gradients by the scale; a 0-dim tensor that is above 0 where one of them was not finite."""
        # Where nothing has a gradient, as while every group is frozen, the scaler has nothing to learn from.
        self._looked = any(p.grad is not None for group in optimizer.param_groups for p in group["params"])
        if not self._looked:
            return torch.zeros(())
        self._scaler.unscale_(optimizer)
        found = list(self._scaler._found_inf_per_device(optimizer).values())  # noqa: SLF001 - a sync is what step costs
        return torch.stack([each.to(found[0].device) for each in found]).sum()

    def move_on(self) -> None:
        """After the update or its absence: a smaller scale after an overflow, a larger one after many steps without."""
        if self._looked:
            self._scaler.update()

    def state(self) -> dict[str, Any]:
        """Scale and counts, as plain numbers."""
        return self._scaler.state_dict()

    def load(self, state: dict[str, Any]) -> None:
        """Take up what `state` gave."""
        self._scaler.load_state_dict(state)


def loss_scaling(settings: Settings, device: torch.device) -> Scaling | None:
    """The scaling of an fp16 run; None for the others, whose range is that of fp32."""
    return Scaling(device) if settings.precision == "fp16" else None
