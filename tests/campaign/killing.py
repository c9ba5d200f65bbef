"""A task with deadly batches: in the second epoch, marked samples kill the process while the loss is computed.

Each loss draws from all three generators before that, and state of the task's own says which epoch it is. From that
epoch on one batch's loss is not a number, and is skipped by the detector after its draws. At the end of the first
epoch it waits while the file `brake` lies in the working folder.
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

BATCH, BATCHES, DEADLY_EPOCH = 12, 8, 2
# Counted from 1, and one after the other.
DEADLY = (4, 5)
SICK = 2


def _data() -> TensorDataset:
    """Samples in order. The first number is 0 for a deadly sample, 1 for a bad one, and neither for any other."""
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(BATCH * BATCHES, 6, generator=generator)
    targets = inputs[:, 1:3].argmax(1)
    inputs[(DEADLY[0] - 1) * BATCH : DEADLY[-1] * BATCH, 0] = 0.0
    inputs[(SICK - 1) * BATCH : SICK * BATCH, 0] = 1.0
    return TensorDataset(inputs, targets)


class Killing:
    """The task."""

    def __init__(self) -> None:
        self.epoch = 1

    def model(self, cfg: Any) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2))

    def train_data(self, cfg: Any) -> Any:
        return DataLoader(_data(), batch_size=BATCH)

    def val_data(self, cfg: Any) -> Any:
        return DataLoader(_data(), batch_size=BATCH)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        inputs, targets = batch
        noise = random.gauss(0.0, 0.1) + np.random.standard_normal() * 0.1
        found = functional.cross_entropy(model(inputs + noise), targets)
        if self.epoch == DEADLY_EPOCH and bool((inputs[:, 0] == 0.0).any()):
            os.kill(os.getpid(), signal.SIGKILL)
        if self.epoch >= DEADLY_EPOCH and bool((inputs[:, 0] == 1.0).all()):
            return found * float("nan")
        return found

    def evaluate(self, model: nn.Module, batch: Any) -> dict[str, tuple[Tensor, int]]:
        inputs, targets = batch
        logits = model(inputs)
        return {"loss": (functional.cross_entropy(logits, targets, reduction="sum"), len(targets))}

    def on_epoch_end(self, model: nn.Module, epoch: int, metrics: Any) -> None:
        self.epoch = epoch + 1
        while epoch == 1 and Path("brake").exists():
            time.sleep(0.005)

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch = state["epoch"]
