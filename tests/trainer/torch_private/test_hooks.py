"""The hooks that torch holds are found in both ways, and the order of an optimizer's hooks can be changed."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from tests.trainer.torch_private.ways import WAYS, module


@pytest.fixture(params=WAYS)
def hooks(request):
    return module("hooks", request.param)


def test_hooks_of_a_forward_pass(hooks):
    """Those that were added, and nothing else afterwards."""
    layer = nn.Linear(1, 1)
    layer.register_forward_hook(print)
    assert list(hooks.of_forward(layer).values()) == [print]
    assert list(hooks.of_forward(layer).values()) == [print]
    assert not hooks.of_forward(nn.Linear(1, 1))


def test_hooks_after_the_accumulation_of_a_gradient(hooks):
    """None at first, then in their order; torch calls them as before."""
    leaf, seen = nn.Parameter(torch.ones(1)), []
    assert hooks.after_accumulation(leaf) == []
    first, second = (lambda one: seen.append(1)), (lambda one: seen.append(2))
    leaf.register_post_accumulate_grad_hook(first)
    leaf.register_post_accumulate_grad_hook(second)
    assert hooks.after_accumulation(leaf) == [first, second]
    (leaf * 2).sum().backward()
    assert seen == [1, 2]


def test_hooks_before_a_step_can_be_moved_in_their_dictionary(hooks):
    """It is torch's own: what is moved to its end runs last."""
    seen = []
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    first = optimizer.register_step_pre_hook(lambda *_: seen.append("first"))
    optimizer.register_step_pre_hook(lambda *_: seen.append("second"))
    found = hooks.before_step(optimizer)
    assert next(iter(found)) == first.id
    found.move_to_end(first.id)
    optimizer.step()
    assert seen == ["second", "first"]


def test_hooks_before_any_step_are_those_of_every_optimizer(hooks):
    """Torch's public function adds to them."""
    before = len(hooks.BEFORE_ANY_STEP)
    handle = register_optimizer_step_pre_hook(print)
    assert list(hooks.BEFORE_ANY_STEP.values())[-1] is print
    handle.remove()
    assert len(hooks.BEFORE_ANY_STEP) == before
