"""Unusual layers, optimizers and loops: buffers, draws, parametrizations, averages, accumulation, custom steps."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.optim import ASGD, SGD, Adafactor, Adam, NAdam, Optimizer, RAdam, RMSprop, Rprop

from tests.trainer.odd_models.harness import RATE, WIDTH, Batch, Odd, squared_error
from tests.trainer.odd_models.parameters import two_layers


class Recurrent(nn.Module):
    """A recurrent layer over the inputs one by one."""

    def __init__(self, kind: Any, **options: Any) -> None:
        super().__init__()
        self.cell, ways = kind(1, 3, batch_first=True, **options), 2 if options.get("bidirectional") else 1
        self.head = nn.Linear(3 * ways, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.cell(inputs.unsqueeze(2))[0][:, -1])


class Attention(nn.Module):
    """A transformer's layer with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.rise = nn.Linear(1, 4)
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.2, batch_first=True)
        self.head = nn.Linear(4, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.layer(self.rise(inputs.unsqueeze(2))).mean(1))


class Draws(nn.Module):
    """Draws from torch, NumPy and Python in one pass."""

    def __init__(self) -> None:
        super().__init__()
        self.net = two_layers()

    def forward(self, inputs: Tensor) -> Tensor:
        noise = torch.randn_like(inputs) * 0.1
        if random.random() < 0.5:
            noise = noise * float(np.random.rand())
        return self.net(inputs + noise)


class Counting(nn.Module):
    """Keeps statistics in buffers: one is replaced, and one is created in the first pass."""

    def __init__(self) -> None:
        super().__init__()
        self.net = two_layers()
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, inputs: Tensor) -> Tensor:
        self.seen += 1
        self.mean = self.mean * 0.9 + inputs.mean(0) * 0.1
        return self.net(inputs - self.mean)


class Codebook(nn.Module):
    """Writes a buffer through `.data`, as codebooks with moving averages do."""

    def __init__(self) -> None:
        super().__init__()
        self.net = two_layers()
        self.register_buffer("codes", torch.zeros(2, WIDTH))

    def forward(self, inputs: Tensor) -> Tensor:
        self.codes.data.lerp_(inputs[:2], 0.1)
        return self.net(inputs - self.codes.mean(0))


class Averaged(nn.Module):
    """An average of the weights beside them, in the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.average = two_layers(), two_layers().requires_grad_(False)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.net(inputs)

    @torch.no_grad()
    def take_in(self) -> None:
        for one, other in zip(self.average.parameters(), self.net.parameters(), strict=True):
            one.lerp_(other, 0.1)


def near_its_average(model: Averaged, batch: Batch) -> Tensor:
    return squared_error(model, batch) + (model(batch[0]) - model.average(batch[0])).square().mean()


def normed(layer: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), layer, nn.ReLU(), nn.Linear(WIDTH, 1))


def parametrized(by: Any) -> nn.Module:
    return nn.Sequential(by(nn.Linear(WIDTH, WIDTH)), nn.Tanh(), nn.Linear(WIDTH, 1))


@torch.no_grad()
def clamp(model: nn.Module) -> None:
    """As a critic's weights are."""
    for one in model.parameters():
        one.clamp_(-0.3, 0.3)


def leave_gradients(model: nn.Module) -> None:
    """A stale gradient, which `zero_grad` drops."""
    for one in model.parameters():
        one.grad = torch.ones_like(one)


class Halving(SGD):
    """A custom step around torch's."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for one in group["params"]:
                if one.grad is not None:
                    one.grad.mul_(0.5)
        return super().step(closure)


class Own(Optimizer):
    """A custom optimizer with state."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for one in group["params"]:
                if one.grad is not None:
                    state = self.state[one]
                    state["seen"] = state.get("seen", torch.zeros_like(one)) + one.grad.sign()
                    one.add_(state["seen"], alpha=-group["lr"])


def hooks_around(model: nn.Module) -> Optimizer:
    """Noise before each step, drawn from torch's generator; weights rounded after it."""
    optimizer = SGD(model.parameters(), lr=RATE)

    def noisy(*_: Any) -> None:
        for one in model.parameters():
            if one.grad is not None:
                one.grad.add_(torch.randn_like(one.grad), alpha=0.01)

    @torch.no_grad()
    def rounded(*_: Any) -> None:
        for one in model.parameters():
            one.copy_((one * 64).round() / 64)

    optimizer.register_step_pre_hook(noisy)
    optimizer.register_step_post_hook(rounded)
    return optimizer


def two_rates(model: nn.Sequential) -> Optimizer:
    groups = [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": RATE / 2, "momentum": 0.5}]
    return SGD(groups, lr=RATE, momentum=0.9, nesterov=True)


def by(kind: Any, **options: Any) -> Any:
    return lambda model: kind(model.parameters(), lr=RATE, **options)


def in_half(model: nn.Module, batch: Batch) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return squared_error(model, batch)


MODELS = (
    Odd("batch norm", lambda: normed(nn.BatchNorm1d(WIDTH))),
    Odd("batch norm over all of time", lambda: normed(nn.BatchNorm1d(WIDTH, momentum=None))),
    Odd("dropout and random slopes", lambda: nn.Sequential(normed(nn.RReLU()), nn.Dropout(0.1))),
    Odd("group norm and one slope for all", lambda: nn.Sequential(normed(nn.GroupNorm(2, WIDTH)), nn.PReLU())),
    Odd("draws of three generators", Draws),
    Odd("buffers that are counted up and replaced", Counting),
    Odd("buffers written behind autograd's back", Codebook),
    Odd("weight norm", lambda: parametrized(parametrizations.weight_norm)),
    Odd("spectral norm", lambda: parametrized(parametrizations.spectral_norm)),
    Odd("an orthogonal weight", lambda: parametrized(parametrizations.orthogonal)),
    Odd("an LSTM of two layers with dropout", lambda: Recurrent(nn.LSTM, num_layers=2, dropout=0.2)),
    Odd("a GRU in both directions", lambda: Recurrent(nn.GRU, bidirectional=True)),
    Odd("attention", Attention),
    Odd("an average kept by a hook, in the loss", Averaged, near_its_average, on_step_end=lambda m: m.take_in()),
    Odd("an average kept by the recorder", two_layers, settings={"ema": {"decay": 0.9}}),
    Odd("weights clamped by a hook", two_layers, on_step_end=clamp),
    Odd("gradients left behind by a hook", two_layers, on_step_end=leave_gradients),
    Odd("autocast", two_layers, in_half),
    Odd("accumulated, the last group smaller", two_layers, accumulate=3),
    Odd(
        "accumulated with batch norm and Adam", lambda: normed(nn.BatchNorm1d(WIDTH)), optimizer=by(Adam), accumulate=2
    ),
    Odd("without clipping", two_layers, clip=None),
    Odd("two rates", two_layers, optimizer=two_rates),
    Odd("Adam with AMSGrad", two_layers, optimizer=by(Adam, amsgrad=True, foreach=True)),
    Odd("RMSprop, centred", two_layers, optimizer=by(RMSprop, centered=True, momentum=0.5)),
    Odd("Rprop", two_layers, optimizer=by(Rprop), clip=None),
    Odd("averaged SGD", two_layers, optimizer=by(ASGD)),
    Odd("NAdam", two_layers, optimizer=by(NAdam)),
    Odd("RAdam", two_layers, optimizer=by(RAdam)),
    Odd("Adafactor", two_layers, optimizer=by(Adafactor)),
    Odd("hooks around each step", two_layers, optimizer=hooks_around),
    Odd("a step of one's own around torch's", two_layers, optimizer=by(Halving)),
    Odd("an optimizer of one's own", two_layers, optimizer=by(Own)),
)
