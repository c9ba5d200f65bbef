"""A small run of a user's program: network, data, configuration, and the call that trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from tolariad import Tolaria, TrainingResult

EPOCHS, STEPS_PER_EPOCH = 3, 8
CONFIG = {
    "tolaria": {
        "rng_seed": 5,
        "torch_threads": 1,
        "learning_rate": {"base_lr": 0.01, "warmup_epochs": 0},
        "checkpoint_interval_epochs": 1,
        "checkpoint": {"min_gap_s": 0},
        # A slow machine must not make a run careful: it would refuse what a test orders.
        "budgets": {"act": False},
        # Making segments of 100 MB ahead would take a tenth of a test's time.
        "journal": {"segment_bytes": 1_000_000},
    }
}


def data(samples: int = 96) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(samples, 16, generator=generator)
    return TensorDataset(inputs, inputs[:, :4].argmax(1))


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(16, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Dropout(0.2), nn.Linear(24, 4))


def bits(model: nn.Module) -> dict[str, bytes]:
    return {name: tensor.cpu().numpy().tobytes() for name, tensor in model.state_dict().items()}


def loaders(dataset: Dataset | None = None, batch: int = 12, *, validated: bool = True, workers: int = 0) -> tuple:
    """Return the loaders of training and validation; without the second a run is not validated."""
    context = "fork" if workers else None
    train = DataLoader(dataset or data(), batch, shuffle=True, num_workers=workers, multiprocessing_context=context)
    return train, DataLoader(data(48), 24) if validated else None


def made(run_dir: Path, accept_config: bool = False, **options: Any) -> Tolaria:
    """Return a run of CONFIG with these keys."""
    return Tolaria({"tolaria": {**CONFIG["tolaria"], **options}}, run_dir=run_dir, accept_config=accept_config)


class Hooks:
    """A task that calls `hook(step)` after each step."""

    def __init__(self, hook=None):
        self._hook = hook

    def on_step_end(self, model, step):
        if self._hook is not None:
            self._hook(step)


def train(run_dir: Path, hook=None, *, model=None, workers: int = 0, tolaria: Tolaria | None = None) -> TrainingResult:
    tolaria, model = tolaria or made(run_dir), model or network()
    return tolaria.train(model, *loaders(workers=workers), EPOCHS, task=Hooks(hook))
