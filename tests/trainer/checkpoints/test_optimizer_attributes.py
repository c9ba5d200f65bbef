"""An optimizer of the user's own with attributes: they come back with a checkpoint, or the start says which do not."""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn

from tolariad.trainer.checkpoints.optimizer_trial import lost
from tolariad.trainer.checkpoints.optimizers import optimizer_tree, restore_optimizer
from tolariad.trainer.checkpoints.tree import decode_tree, encode_tree
from tolariad.trainer.step.undo import UpdateBackup


class Counts(torch.optim.SGD):
    """It counts, averages, draws and keeps a list, all in attributes."""

    def __init__(self, params, **options):
        super().__init__(params, **options)
        self.count, self.norms, self.draw = 0, [], random.Random(4)
        self.mean = torch.zeros(())
        self.slow = [group["params"] for group in self.param_groups]

    def step(self, closure=None):
        self.count += 1
        self.norms.append(self.draw.random())
        self.mean = self.mean + sum(p.grad.norm() for group in self.param_groups for p in group["params"])
        return super().step(closure)


class Around(torch.optim.Optimizer):
    """It steps by another optimizer, which has the momentum."""

    def __init__(self, params, **options):
        super().__init__(params, options)
        self.inner = torch.optim.SGD(self.param_groups, **options)
        self.param_groups = self.inner.param_groups

    def step(self, closure=None):
        self.inner.step()


class Box:
    def __init__(self):
        self.held = 0


class Loses(torch.optim.SGD):
    """What it counts in is an object of its own."""

    def __init__(self, params, **options):
        super().__init__(params, **options)
        self.box, self.rate = Box(), lambda: 1

    def step(self, closure=None):
        self.box.held += 1
        return super().step(closure)


class Half(Loses):
    """Its state_dict has one of two things."""

    def __init__(self, params, **options):
        super().__init__(params, **options)
        self.count = 0

    def step(self, closure=None):
        self.count += 1
        return super().step(closure)

    def state_dict(self):
        return {**super().state_dict(), "held": self.box.held}

    def load_state_dict(self, state):
        self.box.held = state["held"]
        super().load_state_dict({key: value for key, value in state.items() if key != "held"})


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Linear(3, 2)


def train(model, optimizer, steps):
    for number in range(steps):
        optimizer.zero_grad()
        model(torch.full((4, 3), 1.0 + number)).square().sum().backward()
        optimizer.step()


def contents(model, optimizer):
    own = {name: getattr(optimizer, name, None) for name in ("count", "norms")}
    draw = optimizer.draw.getstate() if hasattr(optimizer, "draw") else None
    mean = optimizer.mean.item() if hasattr(optimizer, "mean") else None
    momentum = (
        []
        if not hasattr(optimizer, "inner")
        else [held["momentum_buffer"].tolist() for held in optimizer.inner.state.values()]
    )
    return own, draw, mean, momentum, [one.tolist() for one in model.parameters()]


@pytest.mark.parametrize("kind", [Counts, Around])
def test_attributes_and_wrapped_optimizers_come_back_and_go_on_as_if_nothing_had_been(kind):
    """Over a checkpoint, and over a step that is undone; the groups stay shared."""
    options = {"lr": 1e-3, "momentum": 0.9}
    whole = network()
    plain = kind(whole.parameters(), **options)
    train(whole, plain, 5)
    model = network()
    first = kind(model.parameters(), **options)
    train(model, first, 2)
    tree = encode_tree(optimizer_tree(model, first), "optimizer")
    again = network()
    again.load_state_dict(model.state_dict())
    second, backup = kind(again.parameters(), **options), UpdateBackup()
    restore_optimizer(second, decode_tree(*tree), torch.device("cpu"))
    assert contents(again, second) == contents(model, first)
    backup.begin()
    backup.keep(second)
    train(again, second, 1)
    backup.put_back()
    assert contents(again, second) == contents(model, first)
    for number in range(2, 5):
        second.zero_grad()
        again(torch.full((4, 3), 1.0 + number)).square().sum().backward()
        second.step()
    assert contents(again, second) == contents(whole, plain)


@pytest.mark.parametrize(
    ("kind", "names"), [(Counts, []), (Around, []), (Loses, ["box"]), (Half, ["count"]), (torch.optim.SGD, [])]
)
def test_a_start_says_which_attributes_a_resume_would_lose(kind, names):
    """And leaves the optimizer and the random state as they were."""
    model = network()
    optimizer = kind(model.parameters(), lr=0.1)
    drawn, before = torch.get_rng_state(), dict(vars(optimizer))
    said = lost("host", optimizer)
    assert [sentence.split()[2] for sentence in said] == names
    assert all("host" in sentence and "begins it anew" in sentence for sentence in said)
    assert torch.equal(torch.get_rng_state(), drawn)
    assert vars(optimizer) == before
    assert not optimizer.state
