"""A task with metrics in its loss: one of every step, one of some steps, one that comes later."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional


class Measuring:
    """Four classes, ten steps an epoch. It knows its step, also after a restart."""

    def __init__(self):
        self.step = 0

    def model(self, cfg):
        return nn.Sequential(nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 4))

    def train_data(self, cfg):
        x = torch.randn(80, 16, generator=torch.Generator().manual_seed(1))
        return x, x[:, :4].argmax(1)

    def val_data(self, cfg):
        return None

    def loss(self, model, batch):
        x, y = batch
        out = model(x)
        self.step += 1
        found = {"loss": functional.cross_entropy(out, y), "acc": (out.argmax(1) == y).float().mean(), "lr": self.step}
        if self.step % 3 == 0:
            found["rare"] = out.max() if self.step % 2 else math.nan
        if self.step > 13:
            found["late"] = -self.step
        return found

    def evaluate(self, model, batch):
        return {}

    def state_dict(self):
        return {"step": self.step}

    def load_state_dict(self, state):
        self.step = state["step"]
