"""A task to start from: it classifies two half moons. Replace the data, the model and the loss by yours.

    tolariad check config.yaml      validates the configuration and shows what the run costs
    tolariad run config.yaml        with `task: ./this_file.py:MyTask` and `epochs: 20` in it

Dropout, augmentation and shuffling may use the process-wide generators of torch, NumPy and Python. They are seeded from
`rng_seed`. A run that is killed and started again draws the numbers it would have drawn.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class MyTask:
    """The class that `task:` names. `cfg` is the whole configuration; your own keys are in `cfg.task_options`."""

    def model(self, cfg: Any) -> nn.Module:
        """Return a new model. It will be moved to the device."""
        width = int(cfg.task_options.get("width", 256))
        hidden = nn.Sequential(nn.Linear(2, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        return nn.Sequential(hidden, nn.Dropout(0.1), nn.Linear(width, 2))

    def train_data(self, cfg: Any) -> Any:  # noqa: ARG002 - the signature is given
        """Return a Dataset, a tuple of tensors of equal length, or a DataLoader."""
        return half_moons(2000, seed=1)

    def val_data(self, cfg: Any) -> Any:  # noqa: ARG002
        """Return the same for validation, or None."""
        return half_moons(500, seed=2)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the loss to minimise: a tensor with one element."""
        points, labels = batch
        return functional.cross_entropy(model(points), labels)

    def evaluate(self, model: nn.Module, batch: Any) -> dict[str, tuple[Any, int]]:
        """Return (sum, count) for each metric. `tolaria status` shows `loss` and `accuracy`."""
        points, labels = batch
        logits = model(points)
        loss = functional.cross_entropy(logits, labels, reduction="sum")
        return {"loss": (loss, len(labels)), "accuracy": ((logits.argmax(1) == labels).sum(), len(labels))}


def half_moons(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return points (count, 2) and labels (count,). A generator of their own makes them the same in every run."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 2, (count,), generator=generator)
    angle = math.pi * torch.rand(count, generator=generator)
    sign = 1.0 - 2.0 * labels
    points = torch.stack([torch.cos(angle) * sign + labels, torch.sin(angle) * sign + 0.5 * labels], 1)
    return points + 0.1 * torch.randn(count, 2, generator=generator), labels
