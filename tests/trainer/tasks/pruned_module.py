"""A LightningModule whose channels are masked and removed."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from tests.trainer.lightning.stub import LightningModule


class Module(LightningModule):
    """One group of 16 channels, `net.0`."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        return functional.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)

    def train_dataloader(self):
        drawn = torch.randn(50, 6, generator=torch.Generator().manual_seed(2))
        return DataLoader(TensorDataset(drawn, drawn[:, :3].argmax(1)), 5)
