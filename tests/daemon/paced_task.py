"""A task whose steps take a while, with dropout: a step of other random numbers would have another loss."""

from __future__ import annotations

import time

import torch
from torch import nn


class PacedTask:
    """Regression on drawn rows; ten steps in a second."""

    def model(self, cfg):
        return nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 1))

    def train_data(self, cfg):
        return (torch.randn(640, 8, generator=torch.Generator().manual_seed(1)),)

    def val_data(self, cfg):
        return None

    def loss(self, model, batch):
        time.sleep(0.1)
        return (model(batch[0]) - 1).square().mean()

    def evaluate(self, model, batch):
        return {}
