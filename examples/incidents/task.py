"""A task with trouble in its data: one item is not a number, another is a thousand times too large."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

ITEMS = 640
NOT_A_NUMBER = 17
TOO_LARGE = 300
STEP_S = 0.02


class Troubled:
    """Classes of random points. With `task_options: {killed: N}` the trainer kills itself at step N, once."""

    def model(self, cfg: Any) -> nn.Module:
        """Return a small network."""
        self._killed = int(cfg.task_options.get("killed", 0))
        return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))

    def train_data(self, cfg: Any) -> tuple[Tensor, Tensor]:
        """Return 640 points; if `task_options.trouble` is set, two of them are wrong."""
        generator = torch.Generator().manual_seed(1)
        points = torch.randn(ITEMS, 8, generator=generator)
        labels = (points[:, 0] > 0).long() + 2 * (points[:, 1] > 0).long()
        if cfg.task_options.get("trouble"):
            points[NOT_A_NUMBER, 3] = float("nan")
            points[TOO_LARGE] *= 1000
        return points, labels

    def val_data(self, cfg: Any) -> tuple[Tensor, Tensor]:
        """Return 100 other points."""
        points = torch.randn(100, 8, generator=torch.Generator().manual_seed(2))
        return points, (points[:, 0] > 0).long() + 2 * (points[:, 1] > 0).long()

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the mean cross-entropy. It takes a while, as a larger model would."""
        time.sleep(STEP_S)
        points, labels = batch
        return functional.cross_entropy(model(points), labels)

    def evaluate(self, model: nn.Module, batch: Any) -> dict[str, tuple[Any, int]]:
        """Return the sums of loss and of correct predictions."""
        points, labels = batch
        logits = model(points)
        loss = functional.cross_entropy(logits, labels, reduction="sum")
        return {"loss": (loss, len(labels)), "accuracy": ((logits.argmax(1) == labels).sum(), len(labels))}

    def describe(self, item: Any) -> str:
        """Return a point and its label."""
        point, label = item
        return f"label {int(label)}, largest coordinate {float(point.abs().max()):.3g}"

    def on_step_end(self, model: nn.Module, step: int) -> None:
        """Kill the trainer at the wanted step, the first time that it comes there."""
        mark = Path("killed-once")
        if step == self._killed and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), 9)
