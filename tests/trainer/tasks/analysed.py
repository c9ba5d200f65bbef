"""Tasks for the analysis of a checkpoint: a loss that draws, no accuracy, and odd ways to call a model."""

from __future__ import annotations

import random

import numpy as np
import torch
from torch import nn
from torch.nn import functional

FILE = __file__


class Two(nn.Module):
    """Two inputs, the second of which can be given by name."""

    def __init__(self):
        super().__init__()
        self.a, self.norm, self.b, self.out = nn.Linear(6, 24), nn.BatchNorm1d(24), nn.Linear(24, 32), nn.Linear(32, 3)

    def forward(self, x, shift=None, factor=1.0, targets=None, *, scale=1.0):
        hidden = self.norm(self.a(x if shift is None else x + shift)).relu()
        logits = self.out(self.b(hidden).relu()) * scale * factor
        return logits if targets is None else (functional.cross_entropy(logits, targets), logits)


class Lossy:
    """It has a loss only, which draws from every process-wide generator."""

    def model(self, cfg):
        return Two()

    def train_data(self, cfg):
        return rows(120, 1)

    def val_data(self, cfg):
        return rows(40, 2)

    def loss(self, model, batch):
        noise = 0.05 * torch.randn_like(batch[0]) + 0.01 * (random.random() + np.random.rand())
        return functional.cross_entropy(self.called(model, batch[0] + noise), batch[1])

    def called(self, model, x):
        return model(x)

    def evaluate(self, model, batch):
        return functional.cross_entropy(self.called(model, batch[0]), batch[1])


def rows(count, seed):
    inputs = torch.randn(count, 6, generator=torch.Generator().manual_seed(seed))
    return inputs, inputs[:, :3].argmax(1)


class ByName(Lossy):
    """It calls the model with arguments by name."""

    def called(self, model, x):
        return model(shift=torch.zeros(6), x=x)


class LikeTransformers(Lossy):
    """The model computes the loss of targets, which it is given by name; the arguments before them keep defaults."""

    def loss(self, model, batch):
        return model(batch[0], targets=batch[1])[0]


class ByNameOnly(Lossy):
    """One of them has no position."""

    def called(self, model, x):
        return model(x, scale=2.0)


class Around(Lossy):
    """It calls parts of the model, and never the model."""

    def called(self, model, x):
        return model.out(model.b(model.norm(model.a(x)).relu()).relu())


class Unvalidated(Lossy):
    """It has no validation data."""

    def val_data(self, cfg):
        return None


class Itself(Lossy):
    """It makes its updates itself."""

    def training_step(self, model, batch, run):
        run.update("host", self.loss(model, batch))


class Flat(Lossy):
    """One layer, whose channels are outputs."""

    def model(self, cfg):
        return nn.Sequential(nn.Linear(6, 3))


class Sequence(nn.Module):
    """A layer before an LSTM, and one after it. In training an auxiliary layer reads the last one too."""

    def __init__(self):
        super().__init__()
        self.a, self.rnn, self.b = nn.Linear(2, 24), nn.LSTM(24, 10, batch_first=True), nn.Linear(10, 32)
        self.c, self.aux, self.out = nn.Linear(32, 20), nn.Linear(20, 3), nn.Linear(20, 3)

    def forward(self, x):
        hidden = self.c(self.b(self.rnn(self.a(x.view(-1, 3, 2)).relu())[0].mean(1)).relu()).relu()
        return self.out(hidden) + self.aux(hidden) if self.training else self.out(hidden)


class Recurrent(Lossy):
    """Its model has an LSTM."""

    def model(self, cfg):
        return Sequence()


class ReadsWeights(Lossy):
    """The loss reads weights of a layer, and knows how many they are."""

    def loss(self, model, batch):
        return super().loss(model, batch) + 1e-3 * (model.b.weight @ torch.ones(24)).square().mean()


class Switch(nn.Module):
    """The samples decide which of two layers computes them; few samples need one of them only."""

    def __init__(self):
        super().__init__()
        self.a, self.low, self.high = nn.Linear(6, 24), nn.Linear(24, 32), nn.Linear(24, 32)
        self.never, self.out = nn.Linear(32, 40), nn.Linear(32, 3)

    def forward(self, x):
        hidden = self.a(x).relu()
        layer = self.low if len(x) < 10 else self.high
        hidden = layer(hidden).relu()
        if x.sum() > 1e9:
            hidden = self.never(hidden)[:, :32]
        return self.out(hidden)


class Switched(Lossy):
    """Its model chooses a layer by its data."""

    def model(self, cfg):
        return Switch()
