"""LightningModules for several ranks."""

from __future__ import annotations

import os
import signal

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from tests.daemon.group_task import took
from tests.trainer.lightning.stub import LightningModule


class Module(LightningModule):
    """A network without draws, whose hooks see the rank that they are in. Its rate falls in each update."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
        self.seen = 0

    def training_step(self, batch, batch_idx):
        x, y = batch
        return functional.mse_loss(self.net(x / 32), y / 64)

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.training_step(batch, batch_idx))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def train_dataloader(self):
        rows = torch.arange(104.0).reshape(52, 2)
        return DataLoader(TensorDataset(rows, rows.sum(1, keepdim=True)), 4, shuffle=True)

    val_dataloader = train_dataloader


class Killed(Module):
    """Rank 1 is killed after its third step, once; modules of different ranks keep different numbers."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 1))

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.seen += 1 + self.trainer.global_rank
        assert self.trainer.world_size == 2
        assert self.trainer.num_training_batches == 7
        if self.trainer.global_rank == 1 and self.trainer.global_step == 3 and os.environ["GROUP_DEEDS"] and took(0):
            os.kill(os.getpid(), signal.SIGKILL)
