"""A task of your own in one file: a regression with a multi-layer perceptron, parameter groups, and task state."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class Waves:
    """Learn sin(3 x) * cos(2 y) from noisy samples; remember the best validation loss."""

    def __init__(self) -> None:
        self.best_loss = float("inf")

    def model(self, cfg: Any) -> nn.Module:
        """Return a network with two hidden layers of width `task_options.width`."""
        width = int(cfg.task_options.get("width", 64))
        layers = [nn.Linear(2, width), nn.Tanh(), nn.Dropout(0.05), nn.Linear(width, width), nn.Tanh()]
        return nn.Sequential(*layers, nn.Linear(width, 1))

    def train_data(self, cfg: Any) -> Any:
        """Return tensors. Tensors in memory need no DataLoader: batches are selected from them by index."""
        return samples(4000, seed=1)

    def val_data(self, cfg: Any) -> Any:
        """Return other samples of the same function."""
        return samples(800, seed=2)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the mean squared error."""
        points, values = batch
        return functional.mse_loss(model(points).squeeze(1), values)

    def evaluate(self, model: nn.Module, batch: Any) -> dict[str, tuple[Any, int]]:
        """Return the summed squared error and the number of samples."""
        points, values = batch
        return {"loss": (functional.mse_loss(model(points).squeeze(1), values, reduction="sum"), len(values))}

    def clip_gradients(self, model: nn.Module) -> Tensor:
        """Clip to norm 1. Return the norm before clipping: the detector checks it and the journal records it."""
        return nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    def on_epoch_end(self, model: nn.Module, epoch: int, metrics: dict[str, float]) -> None:
        """Called after each validation, and again when a restarted run repeats the end of an epoch."""
        self.best_loss = min(self.best_loss, metrics["loss"])

    def state_dict(self) -> dict[str, float]:
        """Return the state to save in every checkpoint."""
        return {"best_loss": self.best_loss}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Restore the state of a checkpoint."""
        self.best_loss = state["best_loss"]


def samples(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return points (count, 2) and values (count,)."""
    generator = torch.Generator().manual_seed(seed)
    points = 2.0 * torch.rand(count, 2, generator=generator) - 1.0
    values = torch.sin(3.0 * points[:, 0]) * torch.cos(2.0 * points[:, 1])
    return points, values + 0.05 * torch.randn(count, generator=generator)
