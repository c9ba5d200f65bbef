"""Small tasks and data that misbehave, for the real runs of which journals are kept."""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset, Sampler


class Slow:
    """Four classes, two steps an epoch, each of a tenth of a second."""

    step_s = 0.1

    def model(self, cfg):
        return nn.Sequential(nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 4))

    def train_data(self, cfg):
        x = torch.randn(128, 16, generator=torch.Generator().manual_seed(1))
        return x, x[:, :4].argmax(1)

    def val_data(self, cfg):
        return None

    def loss(self, model, batch):
        x, y = batch
        time.sleep(self.step_s)
        return functional.cross_entropy(model(x), y)

    def evaluate(self, model, batch):
        return {"loss": (self.loss(model, batch), 1)}


class Measured(Slow):
    """It has metrics, one of them from the third step on."""

    step_s = 0.01
    steps = 0

    def loss(self, model, batch):
        loss = super().loss(model, batch)
        self.steps += 1
        late = {"late": self.steps} if self.steps > 2 else {}
        return {"loss": loss, "double": 2 * loss, **late}

    def evaluate(self, model, batch):
        return {}


class Slower(Slow):
    """For minutes of training in few steps."""

    step_s = 0.7


class Forgetful(Slow):
    """Its loss is another at each attempt."""

    step_s = 0.01

    def loss(self, model, batch):
        return super().loss(model, batch) * (1.0 + os.getpid() * 1e-9)


class Liar(Slow):
    """Its first trainer sends what is no report."""

    step_s = 0.01

    def on_step_end(self, model, step):
        words = sys.argv
        if step == 3 and not (told := Path(words[words.index("--run") + 1], "lied")).exists():
            told.touch()
            with socket.socket(fileno=os.dup(int(words[words.index("--channel-fd") + 1]))) as channel:
                channel.send(b"\xc1 no report")


class Anew(Dataset):
    """Items that are others whenever they are read."""

    def __len__(self):
        return 24

    def __getitem__(self, index):
        x = torch.randn(16, generator=torch.Generator().manual_seed(time.perf_counter_ns()))
        return x, x[:4].argmax()


class Hardest(Sampler):
    """An order that depends on the model."""

    def __init__(self, model):
        self.model = model

    def __len__(self):
        return 24

    def __iter__(self):
        return iter(torch.randperm(24).tolist())
