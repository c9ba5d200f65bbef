"""Backward pass and update without torch's wrappers: the same bits, and whoever is served by a wrapper is served."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim import optimizer as torchs

from tolariad.core.learning_rate import GroupConfig, LRPolicy
from tolariad.trainer import plain
from tolariad.trainer.lr import UnifiedLRController

KINDS = (torch.optim.SGD, torch.optim.AdamW, torch.optim.Rprop, torch.optim.Adagrad)


def made(kind=torch.optim.AdamW):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = kind(model.parameters(), lr=0.01)
    controller = UnifiedLRController({}, steps_per_epoch=10, total_steps=100)
    controller.register_optimizer(
        "main", optimizer, GroupConfig(name="main", policy=LRPolicy.HOST_COSINE, base_lr=0.01)
    )
    return model, optimizer, controller


def loss_of(model, scale=1.0):
    return scale * (model(torch.linspace(-1, 1, 32).reshape(4, 8)) ** 2).mean()


def trained(kind, backward, step):
    model, optimizer, controller = made(kind)
    for _ in range(20):
        backward(loss_of(model))
        step(optimizer)
        optimizer.zero_grad()
        controller.advance(1)
    return [parameter.detach() for parameter in model.parameters()]


@pytest.mark.parametrize("kind", KINDS)
def test_the_bits_are_those_of_torchs_own(kind, monkeypatch):
    """For every step; and the wrappers are left out indeed."""
    theirs = trained(kind, torch.Tensor.backward, kind.step)
    left_out = []
    monkeypatch.setattr(torchs.Optimizer, "_optimizer_step_code", lambda _: left_out.append(1))
    ours = trained(kind, plain.backward, plain.step)

    assert all(torch.equal(a, b) for a, b in zip(theirs, ours, strict=True))
    assert left_out == []


def test_a_loss_of_another_type_is_differentiated_by_one_of_its_own():
    """Double precision too, and a loss that nothing leads to is refused as ever."""
    model = nn.Linear(8, 1).double()
    plain.backward((model(torch.ones(1, 8).double()) ** 2).mean())
    assert model.weight.grad.dtype is torch.float64
    with pytest.raises(RuntimeError, match="does not require grad"):
        plain.backward(torch.tensor(1.0))


def test_a_gradient_is_not_the_seed_that_all_losses_share():
    """A loss that is a parameter keeps what it is differentiated by as its gradient: the next loss must not add to that."""
    weight = nn.Parameter(torch.tensor(2.0))
    plain.backward(weight)
    plain.backward(weight)
    assert weight.grad.item() == 2.0
    other = nn.Parameter(torch.tensor(3.0))
    plain.backward(other * 5)
    assert other.grad.item() == 5.0


def test_a_patched_backward_is_called(monkeypatch):
    """Of the tensor, or of autograd: libraries do that."""
    model, _, _ = made()
    called = []
    torchs_own = torch.Tensor.backward
    monkeypatch.setattr(torch.Tensor, "backward", lambda loss: (called.append("tensor"), torchs_own(loss))[1])
    plain.backward(loss_of(model))
    monkeypatch.undo()
    inner = torch.autograd.backward
    monkeypatch.setattr(torch.autograd, "backward", lambda *a, **k: (called.append("autograd"), inner(*a, **k))[1])
    plain.backward(loss_of(model))

    assert called == ["tensor", "autograd"]


def test_a_tensor_of_a_kind_of_its_own_has_its_say():
    """Its class may answer for backward."""
    asked = []

    class Kind(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            asked.append(func)
            return super().__torch_function__(func, types, args, kwargs or {})

    model, _, _ = made()
    plain.backward(loss_of(model).as_subclass(Kind))
    assert torch.Tensor.backward in asked


@pytest.mark.parametrize("where", ["pre", "post", "global pre", "global post", "instead of ours"])
def test_every_hook_around_a_step_is_called(where):
    """Whoever registered it, wherever."""
    model, optimizer, _ = made()
    called = []

    def hook(*_):
        called.append(where)

    put_back = dict(torchs._global_optimizer_pre_hooks)
    handle = {
        "pre": optimizer.register_step_pre_hook,
        "post": optimizer.register_step_post_hook,
        "global pre": torchs.register_optimizer_step_pre_hook,
        "global post": torchs.register_optimizer_step_post_hook,
        "instead of ours": lambda one: (
            torchs._global_optimizer_pre_hooks.clear(),
            torchs.register_optimizer_step_pre_hook(one),
        )[1],
    }[where](hook)
    plain.backward(loss_of(model))
    plain.step(optimizer)
    handle.remove()
    torchs._global_optimizer_pre_hooks.update(put_back)
    assert called == [where]


def test_a_profiler_finds_the_steps_range():
    """It is what the range is there for."""
    model, optimizer, _ = made()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        plain.backward(loss_of(model))
        plain.step(optimizer)
    assert any(event.key == "Optimizer.step#AdamW.step" for event in profile.key_averages())


def test_a_step_that_was_put_in_another_ones_place_is_called(monkeypatch):
    """On the optimizer, as torch's schedulers do, or on its class; also where it says that it wraps torch's."""
    model, optimizer, _ = made()
    called = []
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    plain.backward(loss_of(model))
    plain.step(optimizer)
    assert optimizer._opt_called
    del optimizer.step

    own = torch.optim.AdamW.step

    def wrapping(self, closure=None):
        called.append(1)
        return own(self, closure)

    wrapping.__wrapped__ = own
    wrapping.hooked = True
    monkeypatch.setattr(torch.optim.AdamW, "step", wrapping)
    plain.step(optimizer)
    assert called == [1]


def test_the_guard_looks_before_a_plain_step():
    """A rate that somebody wrote is put right before anything moves by it."""
    told = []
    model, optimizer, controller = made(torch.optim.SGD)
    controller.on_violation = told.append
    before = model[0].weight.detach().clone()
    plain.backward(loss_of(model))
    gradient = model[0].weight.grad.clone()
    optimizer.param_groups[0]["lr"] = 5.0
    plain.step(optimizer)

    assert len(told) == 1
    assert torch.equal(model[0].weight, before - controller.row[0] * gradient)
