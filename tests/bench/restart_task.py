"""A large state and a short step: square layers of which a batch of one row goes through every one, AdamW beside them.

`task_options`: `millions` of parameters.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

BATCHES = 1_000_000


class RestartTask:
    """The task that is killed and started again."""

    width = 1024

    def model(self, cfg: Any) -> nn.Module:
        width = self.width
        layers = max(1, round(float(cfg.task_options["millions"]) * 1e6 / (width * width + width)))
        return nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))

    def train_data(self, cfg: Any) -> Any:
        return (torch.arange(BATCHES, dtype=torch.float32).unsqueeze(1) / BATCHES,)

    def val_data(self, cfg: Any) -> Any:
        return None

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        (row,) = batch
        return (model(row.expand(-1, self.width)) - 1).square().mean()

    def evaluate(self, model: nn.Module, batch: Any) -> dict[str, tuple[Any, int]]:
        return {}
