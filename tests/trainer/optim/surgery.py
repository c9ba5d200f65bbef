"""Models, rates and weight surgery for the tests of rebuilds."""

from __future__ import annotations

import copy

import torch
from torch import nn

from tolariad.trainer.optim import CautiousAdamW, OptimizerRebuildCoordinator

OPTIMIZERS = {
    "adam": lambda params: torch.optim.Adam(params, lr=1e-2, weight_decay=1e-3),
    "adamw amsgrad": lambda params: torch.optim.AdamW(params, lr=1e-2, amsgrad=True),
    "cautious": lambda params: CautiousAdamW(params, lr=1e-2),
    "sgd": lambda params: torch.optim.SGD(params, lr=1e-2),
    "sgd nesterov": lambda params: torch.optim.SGD(params, lr=1e-2, momentum=0.9, nesterov=True),
    "rmsprop": lambda params: torch.optim.RMSprop(params, lr=1e-3, centered=True, momentum=0.5),
    "adagrad": lambda params: torch.optim.Adagrad(params, lr=1e-2, initial_accumulator_value=0.1),
}


class Rates:
    """A fake rate owner that records the optimizers and the rates of new groups."""

    def __init__(self, optimizer, new_rate=0.0):
        self.optimizer = optimizer
        self.new_rate = new_rate
        self.fails = ""
        self.replaced = 0

    def replace_optimizer(self, old, new):
        if old is not self.optimizer:
            raise ValueError("the optimizer is not registered")
        if self.fails == "replace":
            self.fails = ""
            raise RuntimeError("no")
        self.optimizer = new
        self.replaced += 1

    def add_new_parameters(self, optimizer, new_params, parent_group_name=None):
        if self.fails == "add":
            raise RuntimeError("no room")
        options = {k: v for k, v in optimizer.param_groups[0].items() if k not in {"params", "param_names", "lr"}}
        optimizer.add_param_group({**options, "params": list(new_params), "lr": self.new_rate})


class NotCarried(Exception):
    """A rebuild was aborted. The text is the reason that the event gives: the name of an error, and its text."""


def carried(optimizer, new_model, old_model, mappings=(), rates=None, told=None):
    """Return a copy of the optimizer after a rebuild from one model to the other. Raises NotCarried."""
    held = [p for group in optimizer.param_groups for p in group["params"]]
    copied = copy.deepcopy(optimizer, {id(p): p for p in held})
    told = [] if told is None else told
    if rates is not None:
        rates.optimizer = copied
    coordinator = OptimizerRebuildCoordinator(copied, old_model, rates or Rates(copied), on_event=told.append)
    if not coordinator.rebuild(mappings, among=dict(new_model.named_parameters())):
        raise NotCarried(told[-1].why)
    return copied


def net(seed, width=6, dtype=torch.float64):
    """A network 3 -> width -> 2 with named layers."""
    torch.manual_seed(seed)
    model = nn.Sequential()
    model.add_module("first", nn.Linear(3, width))
    model.add_module("act", nn.Tanh())
    model.add_module("last", nn.Linear(width, 2))
    return model.to(dtype)


def train(model, optimizer, seed, steps, start=0):
    """Make steps of a regression whose batches depend on seed and step."""
    dtype = next(model.parameters()).dtype
    for step in range(start, start + steps):
        backward(model, seed, step, dtype)
        optimizer.step()


def backward(model, seed, step, dtype=torch.float64):
    """Compute the gradients of one batch."""
    generator = torch.Generator().manual_seed(seed + 1000 * step)
    x = torch.randn(16, 3, generator=generator, dtype=torch.float64).to(dtype)
    y = torch.randn(16, 2, generator=generator, dtype=torch.float64).to(dtype)
    model.zero_grad()
    (model(x) - y).square().mean().backward()


def bits(model, optimizer):
    """Return everything that an abort must not change, as values."""
    held = [p for group in optimizer.param_groups for p in group["params"]]
    return copy.deepcopy(
        (
            [id(p) for p in held],
            [p.detach() for p in held],
            [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups],
            [dict(optimizer.state[p]) for p in held if p in optimizer.state],
            [id(p) for p in optimizer.state],
            [p.detach() for p in model.parameters()],
        )
    )


def same(a, b):
    """Return whether two nested values are equal bit for bit."""
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b) and a.dtype == b.dtype
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def widened(model, by, seed):
    """Return a wider copy: the outgoing weights of new units are 0, so the function is the same."""
    width = model.first.out_features
    wide = net(seed, width + by, model.first.weight.dtype)
    with torch.no_grad():
        wide.first.weight[:width], wide.first.bias[:width] = model.first.weight, model.first.bias
        wide.last.weight[:, :width], wide.last.weight[:, width:] = model.last.weight, 0.0
        wide.last.bias.copy_(model.last.bias)
    return wide


def split(model, unit, alpha):
    """Net2Net: duplicate hidden `unit`, outgoing weights times alpha and 1 - alpha; the function is the same."""
    width = model.first.out_features
    wide = net(0, width + 1, model.first.weight.dtype)
    with torch.no_grad():
        source = [*range(width), unit]
        wide.first.weight.copy_(model.first.weight[source])
        wide.first.bias.copy_(model.first.bias[source])
        wide.last.weight.copy_(model.last.weight[:, source])
        wide.last.weight[:, unit] *= alpha
        wide.last.weight[:, width] *= 1 - alpha
        wide.last.bias.copy_(model.last.bias)
    return wide
