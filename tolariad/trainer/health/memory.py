"""Measure the memory of the parts of a run, in percent of the device's or the host's memory.

Model, optimizer and gradients are in the memory of the model's device. Copies for checkpoints are in host memory.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import nn

    from tolariad.trainer.optim.owners import Owner


def memory_shares(model: nn.Module, owners: Sequence[Owner], device: torch.device, copies: int) -> dict[str, float]:
    """Return the percentage of each component, by the names of the budgets. `copies`: bytes of buffers for checkpoints.

    Gradients count with their size during a step, even if there are none at the moment.
    """
    host = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    pool = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else host
    parameters = tuple(model.parameters())
    held = (entry for owner in owners for entry in owner.optimizer.state.values())
    state = (one for entry in held for one in entry.values() if isinstance(one, torch.Tensor))
    return {
        "memory_model": 100.0 * (_bytes(parameters) + _bytes(model.buffers())) / pool,
        "memory_optimizer": 100.0 * _bytes(state) / pool,
        "memory_gradients": 100.0 * _bytes(one for one in parameters if one.requires_grad) / pool,
        "memory_checkpoints": 100.0 * copies / host,
    }


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(one.numel() * one.element_size() for one in tensors)
