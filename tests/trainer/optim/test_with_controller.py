"""Rebuilds under UnifiedLRController: the schedules continue, and the guard moves to the new optimizer."""

from __future__ import annotations

import copy
import gc
import weakref

import pytest
import torch
from torch import nn

from tests.trainer.optim.surgery import OPTIMIZERS, backward, net, same, train
from tolariad.core.interfaces import ILRController
from tolariad.trainer.lr import GroupConfig, LRPolicy, UnifiedLRController
from tolariad.trainer.optim import OptimizerRebuildCoordinator


def controlled(model, name="cautious", policy=LRPolicy.HOST_COSINE):
    """Return an optimizer of two groups under a controller over 100 steps."""
    groups = [{"params": [model.first.weight, model.last.weight]}, {"params": [model.first.bias, model.last.bias]}]
    optimizer = OPTIMIZERS[name](groups)
    told: list = []
    controller = UnifiedLRController({}, steps_per_epoch=10, total_steps=100, on_violation=told.append)
    configs = [GroupConfig("weights", policy, 0.01, warmup_epochs=1), GroupConfig("biases", LRPolicy.CONSTANT, 0.002)]
    controller.register_optimizer("host", optimizer, configs)
    return controller, optimizer, told


def go(model, optimizer, controller, seed, steps, start=0):
    """Make steps of a user's loop. Return the rates used."""
    used = []
    for number in range(start, start + steps):
        backward(model, seed, number)
        used.append([group["lr"] for group in optimizer.param_groups])
        optimizer.step()
        controller.step(1 + number // 10, {"val_loss": 1.0})
    return used


def test_the_controller_is_what_the_interface_says():
    """The controller's methods match the Protocol."""
    assert isinstance(UnifiedLRController({}), ILRController)


def test_a_rebuilt_optimizer_goes_on_with_the_same_rates_and_the_same_bits(seed):
    """Moved to a copied model at step 20: rates of all 60 steps and the final weights are the undisturbed ones."""
    whole, model = net(seed), net(seed)
    straight, plain, _ = controlled(whole)
    expected = go(whole, plain, straight, seed, 60)
    controller, optimizer, told = controlled(model)
    used = go(model, optimizer, controller, seed, 20)
    twin = copy.deepcopy(model)
    coordinator = OptimizerRebuildCoordinator(optimizer, model, controller)
    assert coordinator.rebuild(among=dict(twin.named_parameters()))
    used += go(twin, optimizer, controller, seed, 40, start=20)

    assert used == expected
    assert same([p.detach() for p in twin.parameters()], [p.detach() for p in whole.parameters()])
    assert [group.name for group in controller.groups] == ["weights", "biases"]
    assert told == []


def test_the_guard_goes_with_the_parameters(seed):
    """Tampering after a rebuild is corrected; the parameters of before are released."""
    model = net(seed)
    controller, optimizer, told = controlled(model)
    go(model, optimizer, controller, seed, 5)
    twin = copy.deepcopy(model)
    coordinator = OptimizerRebuildCoordinator(optimizer, model, controller)
    assert coordinator.rebuild(among=dict(twin.named_parameters()))
    optimizer.param_groups[0]["lr"] = 5.0
    backward(twin, seed, 5)
    optimizer.step()
    assert [violation.group for violation in told] == ["weights"]
    gone = weakref.ref(model.first.weight)
    coordinator.model = twin
    del model
    gc.collect()
    assert gone() is None


def test_growth_in_place_is_no_violation_and_new_layers_warm_up(seed):
    """A wider layer keeps its group's rate, a new one starts at a tenth of a hundredth of it; nothing is told."""
    model = net(seed)
    controller, optimizer, told = controlled(model)
    used = go(model, optimizer, controller, seed, 15)
    coordinator = OptimizerRebuildCoordinator(optimizer, model, controller)
    model.last.bias = nn.Parameter(model.last.bias.detach().clone())
    model.add_module("more", nn.Linear(2, 2).double())
    assert coordinator.rebuild()
    used = go(model, optimizer, controller, seed, 3, start=15)

    assert told == []
    assert controller.verify(strict=True)
    assert used[0][1] == 0.002
    assert used[0][2] == pytest.approx(0.01 * 0.1 * 0.01)
    assert used[0][2] < used[1][2] < used[2][2]
    assert [p is q for p, q in zip(optimizer.param_groups[2]["params"], model.more.parameters(), strict=True)] == [
        True
    ] * 2


def test_an_abort_under_the_controller_leaves_its_guard_in_place(seed, monkeypatch):
    """The new group is refused after groups were exchanged: parameters and rates are the old ones, and training
    continues.
    """
    whole, model = net(seed), net(seed)
    straight, plain, _ = controlled(whole)
    go(whole, plain, straight, seed, 20)
    controller, optimizer, told = controlled(model)
    go(model, optimizer, controller, seed, 10)
    coordinator = OptimizerRebuildCoordinator(optimizer, model, controller)
    model.add_module("more", nn.Linear(2, 2).double())

    def refuse(*_):
        raise RuntimeError("no room")

    monkeypatch.setattr(controller, "add_new_parameters", refuse)
    assert coordinator.rebuild() is False
    del model.more
    go(model, optimizer, controller, seed, 10, start=10)

    assert same([p.detach() for p in model.parameters()], [p.detach() for p in whole.parameters()])
    assert told == []


def test_a_frozen_group_stays_frozen_with_its_new_parameters(seed):
    """Rate 0, no gradient taken, no moment moved."""
    model = net(seed)
    controller, optimizer, _ = controlled(model, policy=LRPolicy.FROZEN)
    coordinator = OptimizerRebuildCoordinator(optimizer, model, controller)
    model.first.weight = nn.Parameter(torch.cat([model.first.weight.detach(), torch.ones(1, 3).double()]))
    model.first.bias = nn.Parameter(torch.cat([model.first.bias.detach(), torch.ones(1).double()]))
    model.last.weight = nn.Parameter(torch.cat([model.last.weight.detach(), torch.ones(2, 1).double()], dim=1))
    assert coordinator.rebuild()
    before = [model.first.weight.detach().clone(), model.first.bias.detach().clone()]
    train(model, optimizer, seed, 2)

    assert torch.equal(model.first.weight, before[0])
    assert not torch.equal(model.first.bias, before[1])


def test_what_is_not_registered_cannot_be_replaced(seed):
    """Neither can one be replaced by another with more groups; the guard stays."""
    model = net(seed)
    controller, optimizer, told = controlled(model)
    other = torch.optim.SGD(net(seed).parameters())
    for old, new in ((other, optimizer), (optimizer, other)):
        with pytest.raises(ValueError, match="not registered, or the new one has another number of groups"):
            controller.replace_optimizer(old, new)
    optimizer.param_groups[0]["lr"] = 9.0
    assert controller.verify() is False
    assert len(told) == 1
