"""What the parts of a run hold in memory, in percent of the pool they lie in.

Model, optimizer and gradients lie where the model does, in the device's memory or in the host's; copies of checkpoints always
in the host's. It must not know: budgets, what follows from them.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import nn


def memory_shares(
    model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device, copies: int
) -> dict[str, float]:
    """Percent by component, as the budgets name them. `copies`: bytes that checkpoints are copied into.

    Gradients count as they are in a step, whether they are there now or not.
    """
    host = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    pool = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else host
    parameters = tuple(model.parameters())
    state = (one for held in optimizer.state.values() for one in held.values() if isinstance(one, torch.Tensor))
    return {
        "memory_model": 100.0 * (_bytes(parameters) + _bytes(model.buffers())) / pool,
        "memory_optimizer": 100.0 * _bytes(state) / pool,
        "memory_gradients": 100.0 * _bytes(one for one in parameters if one.requires_grad) / pool,
        "memory_checkpoints": 100.0 * copies / host,
    }


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(one.numel() * one.element_size() for one in tensors)
