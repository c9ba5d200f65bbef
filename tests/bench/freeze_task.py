"""Steps that take `task_options: step_ms` of matrix products, and nothing that is learnt."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn

from tests.bench.restart_task import RestartTask


class FreezeTask(RestartTask):
    """The task that is frozen during its steps."""

    width = 128

    def model(self, cfg: Any) -> nn.Module:
        self.step_s = float(cfg.task_options["step_ms"]) / 1e3
        return nn.Linear(self.width, self.width)

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        until = time.perf_counter() + self.step_s
        square = torch.full((self.width, self.width), 1 / self.width)
        while time.perf_counter() < until:
            square = square @ square
        return super().loss(model, batch)
