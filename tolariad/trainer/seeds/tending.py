"""The gradients of seeds after the backward pass: measured, clipped, and dropped if they are not finite.

Promises: the host's gradients are not touched. A seed whose gradients are dropped makes no update in this step; every
other seed and the host do.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from tolariad.trainer.setup import Setup


def tend(setup: Setup) -> None:
    """Tend the gradients of every seed before the update. Call it only if `setup.garden.active`."""
    limit = setup.settings.seeds.max_gradient_norm
    for plot in setup.garden.growing:
        gradients = [one.grad for one in plot.parameters if one.grad is not None]
        if not gradients:
            continue
        if setup.scaling is not None:
            setup.scaling.unscale_apart(gradients)
        norm = math.hypot(*(torch.linalg.vector_norm(gradient).item() for gradient in gradients))
        plot.measured(norm)
        if not math.isfinite(norm):
            for parameter in plot.parameters:
                parameter.grad = None
            continue
        if limit and norm > limit:
            torch._foreach_mul_(gradients, limit / norm)
