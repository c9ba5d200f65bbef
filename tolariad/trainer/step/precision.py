"""The number format of forward passes: fp32, or bf16 and fp16 with torch.autocast; fp16 with a scaled loss.

Promises: parameters, gradients, optimizer state and averages keep the model's format. In training and validation, only
operations that autocast considers safe use half precision. An overflow of fp16 gradients is known before the update.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from tolariad.trainer.torch_private import lists
from tolariad.trainer.torch_private.scaling import overflows_of, scale_of

if TYPE_CHECKING:
    from tolariad.core.calc.settings.model import Settings

Forward: TypeAlias = Callable[[], AbstractContextManager[Any]]


def forward_context(settings: Settings, device: torch.device) -> Forward:
    """Return a function that creates the context manager for one forward pass."""
    if settings.precision == "fp32":
        nothing = nullcontext()
        return lambda: nothing
    dtype = torch.float16 if settings.precision == "fp16" else torch.bfloat16
    return lambda: torch.autocast(device.type, dtype=dtype)


class Scaling:
    """The loss scale of an fp16 run, by torch's GradScaler.

    For an update, call `backward`, then `unscale`, then update or skip, then `move_on`.
    GradScaler.step would wait for the device to learn whether to update. Here that answer is transferred with loss and
    norm.
    """

    def __init__(self, device: torch.device) -> None:
        self._scaler = torch.amp.GradScaler(device.type)
        self._has_gradients = False

    def backward(self, loss: torch.Tensor, *, retain_graph: bool = False) -> None:
        """Compute the gradients of the scaled loss."""
        self._scaler.scale(loss).backward(retain_graph=retain_graph)

    def scaled(self, value: torch.Tensor) -> torch.Tensor:
        """Return `value` times the scale: what a backward pass of a loss that is not scaled begins with."""
        found: torch.Tensor = self._scaler.scale(value)
        return found

    def unscale(self, optimizers: Sequence[torch.optim.Optimizer]) -> torch.Tensor:
        """Divide the gradients by the scale. Return a 0-dim tensor, above 0 if one of them was not finite."""
        # An optimizer without any gradient, as while all its groups are frozen, tells the scaler nothing.
        trained = [one for one in optimizers if any(p.grad is not None for g in one.param_groups for p in g["params"])]
        self._has_gradients = bool(trained)
        if not trained:
            return torch.zeros(())
        found: list[torch.Tensor] = []
        for one in trained:
            self._scaler.unscale_(one)
            # GradScaler.step uses the same, but waits for the device.
            found += overflows_of(self._scaler, one)
        return torch.stack([each.to(found[0].device) for each in found]).sum()

    def unscale_apart(self, gradients: Sequence[torch.Tensor]) -> None:
        """Divide gradients that have no influence on the scale: those of seeds. Overflows stay in them."""
        if gradients:
            # `get_scale` would wait for the device. The same arithmetic as in GradScaler.unscale_.
            lists.mul_(list(gradients), scale_of(self._scaler, gradients[0]).double().reciprocal().float())

    def move_on(self) -> None:
        """Update the scale after an update: smaller after an overflow, larger after many updates without one."""
        if self._has_gradients:
            self._scaler.update()
            self._has_gradients = False

    def state(self) -> dict[str, Any]:
        """Return scale and counts as plain numbers."""
        return self._scaler.state_dict()

    def load(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned."""
        self._scaler.load_state_dict(state)
