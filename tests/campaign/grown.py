"""A task with slots that the default policy fills: its host hardly learns, so a plateau comes soon."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tolariad.trainer.seeds import SeedSlot

EPOCHS, BATCH = 36, 24
# Of `tolaria`. A seed learns much faster than the host.
CONFIG: dict[str, Any] = {
    "strategy": "default",
    "rng_seed": 11,
    "torch_threads": 1,
    "determinism": "strict",
    "checkpoint_interval_epochs": 1,
    "checkpoint": {"min_gap_s": 0},
    "learning_rate": {"base_lr": 0.0001, "warmup_epochs": 0},
    "seeds": {"lr": 0.02, "blend_steps": 6, "embargo_epochs": 1, "gates": {"min_steps": 1}},
    # Nothing may depend on how fast the machine is.
    "integration": {"tamiyo_timeout_s": 60},
    "budgets": {"act": False},
    "detect": {"act": False},
}


def samples(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return inputs and labels."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 16, generator=generator)
    return inputs, inputs[:, :4].argmax(1)


def network() -> nn.Module:
    """Return a network with two slots, dropout and batch norm."""
    return nn.Sequential(
        nn.Linear(16, 24),
        nn.BatchNorm1d(24),
        SeedSlot("early"),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Linear(24, 4),
        SeedSlot("late"),
    )


class Grown:
    """The task."""

    def model(self, cfg: Any) -> nn.Module:
        return network()

    def train_data(self, cfg: Any) -> Any:
        return samples(96, 1)

    def val_data(self, cfg: Any) -> Any:
        return samples(48, 2)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        inputs, labels = batch
        return functional.cross_entropy(model(inputs), labels)

    def evaluate(self, model: nn.Module, batch: Any) -> dict[str, tuple[Tensor, int]]:
        inputs, labels = batch
        return {"loss": (functional.cross_entropy(model(inputs), labels, reduction="sum"), len(labels))}
