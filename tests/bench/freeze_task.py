"""Steps that take `task_options: step_ms` of matrix products, and nothing that is learnt."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn

WIDTH = 128
BATCHES = 1_000_000


class FreezeTask:
    """What is frozen amid its steps."""

    def model(self, cfg: Any) -> nn.Module:
        self.step_s = float(cfg.task_options["step_ms"]) / 1e3
        return nn.Linear(WIDTH, WIDTH)

    def train_data(self, cfg: Any) -> Any:
        return (torch.arange(BATCHES, dtype=torch.float32).unsqueeze(1) / BATCHES,)

    def val_data(self, cfg: Any) -> Any:
        return None

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        (row,) = batch
        until = time.perf_counter() + self.step_s
        square = torch.full((WIDTH, WIDTH), 1 / WIDTH)
        while time.perf_counter() < until:
            square = square @ square
        return (model(row.expand(-1, WIDTH)) - 1).square().mean()

    def evaluate(self, model: nn.Module, batch: Any) -> dict[str, tuple[Any, int]]:
        return {}
