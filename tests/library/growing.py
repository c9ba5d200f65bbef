"""Tasks whose model grows while it trains, by changes that the run records."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader

from tests.library.small import data, made
from tolariad.trainer.lr import controller_of
from tolariad.trainer.optim import CautiousAdamW, OptimizerRebuildCoordinator, ParameterMapping

WIDENS, ADDS = 3, 13
EPOCHS = 3


class Gain(nn.Module):
    """Multiplies by a parameter, once there is one."""

    def __init__(self):
        super().__init__()
        self.register_parameter("gain", None)

    def forward(self, x):
        return x if self.gain is None else x * self.gain


def network():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(16, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Dropout(0.2), nn.Linear(24, 4), Gain())


class Grows:
    """It widens a layer after a step, appends one at an epoch's end, and adds a parameter after another step.

    `also` is called after each step. A change draws its numbers from the run's generators.
    """

    def __init__(self, also=lambda step: None, optimizer=None):
        self.also = also
        self.made = []
        self.new = optimizer or (lambda parameters: torch.optim.Adam(parameters, lr=0.01))

    def optimizer(self, model, cfg):
        return self.new(model.parameters())

    def on_step_end(self, model, step):
        if step == WIDENS:
            controller_of(model).grow("widen", layer="4", before="0", norm="1", by=8)
        if step == ADDS:
            controller_of(model).grow("gain", at="5")
        self.also(step)

    def on_epoch_end(self, model, epoch, metrics):
        if epoch == 1:
            controller_of(model).grow("append", width=4, scale=0.25)

    def grow(self, model, change):
        self.made.append(change.name)
        return getattr(self, change.name)(model, **change.arguments)

    def widen(self, model, layer, before, norm, by):
        one, other, between = (model.get_submodule(name) for name in (before, layer, norm))
        with torch.no_grad():
            one.weight = nn.Parameter(torch.cat([one.weight, 0.1 * torch.randn(by, one.in_features)]))
            one.bias = nn.Parameter(torch.cat([one.bias, torch.zeros(by)]))
            other.weight = nn.Parameter(torch.cat([other.weight, 0.1 * torch.randn(other.out_features, by)], 1))
        wider = nn.BatchNorm1d(one.out_features + by)
        for name, tensor in between.state_dict().items():
            held = wider.state_dict()[name]
            held[tuple(slice(0, size) for size in tensor.shape)] = tensor
        model[int(norm)] = wider
        one.out_features += by
        other.in_features += by

    def append(self, model, width, scale):
        layer = nn.Linear(width, width)
        with torch.no_grad():
            layer.weight.mul_(scale).add_(torch.eye(width))
        model.append(layer)

    def gain(self, model, at):
        model.get_submodule(at).gain = nn.Parameter(torch.ones(4))


class Rebuilds(Grows):
    """Its `grow` moves the optimizer itself: a part of the widening, and the whole appended layer."""

    def optimizer(self, model, cfg):
        self.own = super().optimizer(model, cfg)
        return self.own

    def grow(self, model, change):
        coordinator = OptimizerRebuildCoordinator(self.own, model, controller_of(self.own))
        before = model[0].weight.shape
        super().grow(model, change)
        if change.name == "widen":
            mapping = ParameterMapping("0.weight", "0.weight", before, model[0].weight.shape, "reset")
            assert coordinator.add_parameter("0", before, model[0].weight.shape, "weight", mapping=mapping)
        if change.name == "append":
            assert coordinator.rebuild()


class Splits(Grows):
    """It says by a mapping where the new units come from."""

    def widen(self, model, layer, before, norm, by):
        super().widen(model, layer, before, norm, by)
        keep = {0: [*range(24), *range(by)]}
        return [ParameterMapping("0.weight", "0.weight", (24, 16), (24 + by, 16), "expand", keep=keep)]


def cautious(parameters):
    return CautiousAdamW(parameters, lr=0.01)


def momentum(parameters):
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


def train(run_dir, task, *, model=None, tolaria=None, **options):
    """Three epochs of eight steps; the model at the end."""
    model = model or network()
    loader = DataLoader(data(), batch_size=12 // options.get("accumulate", 1), shuffle=True)
    tolaria = tolaria or made(run_dir, **options)
    assert tolaria.train(model, loader, DataLoader(data(48), batch_size=24), EPOCHS, task=task).phase == "completed"
    return model
