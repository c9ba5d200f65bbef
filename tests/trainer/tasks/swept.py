"""Tasks whose loss over the learning rate is known: a parabola, and a small network in two groups or two optimizers."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

FILE = __file__


def points(count: int = 60) -> tuple[torch.Tensor, torch.Tensor]:
    inputs = torch.randn(count, 4, generator=torch.Generator().manual_seed(1))
    return inputs, inputs.sum(1, keepdim=True)


class Parabola:
    """Half the curvature times the square of the only parameter. Gradient descent diverges above 2 / curvature."""

    def model(self, cfg):
        self.curvature, self.level = (cfg.task_options.get(name, 0.0) for name in ("curvature", "level"))
        model = nn.Module()
        model.x = nn.Parameter(torch.full((), 3.0, dtype=torch.float64))
        return model

    def train_data(self, cfg):
        return torch.zeros(4, 1)

    def val_data(self, cfg):
        return None

    def loss(self, model, batch):
        return 0.5 * self.curvature * model.x**2 + self.level

    def evaluate(self, model, batch):
        return self.loss(model, batch)


class Network(Parabola):
    """A regression without dropout. `hooks`: on_step_end was called so often."""

    hooks = 0

    def model(self, cfg):
        return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

    def train_data(self, cfg):
        return points()

    def loss(self, model, batch):
        return functional.mse_loss(model(batch[0]), batch[1])

    def on_step_end(self, model, step):
        Network.hooks += 1


class TwoOptimizers(Network):
    """The second one has half the rate of the first."""

    def optimizers(self, model):
        return {
            "body": torch.optim.SGD(model[0].parameters(), lr=0.2),
            "head": torch.optim.SGD(model[2].parameters(), lr=0.1),
        }


class Updating(TwoOptimizers):
    """It makes its updates itself."""

    loss = None

    def training_step(self, model, batch, run):
        run.update("body", functional.mse_loss(model(batch[0]), batch[1]))
        run.update("head", loss := functional.mse_loss(model(batch[0]), batch[1]))
        return {"loss": loss}


class Breaks(Network):
    """Its loss is infinite as soon as a weight is large."""

    def loss(self, model, batch):
        loss = super().loss(model, batch)
        return loss if model[0].weight.abs().max() < 2.0 else loss * math.inf
