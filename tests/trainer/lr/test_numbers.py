"""However a rate is given, the optimizer gets a float of the controller."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn

from tolariad.trainer.lr import GroupConfig, LRPolicy, UnifiedLRController


def registered(config):
    """Return a controller over one SGD, and its reports."""
    told = []
    controller = UnifiedLRController({}, steps_per_epoch=10, total_steps=50, on_violation=told.append)
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(3))], lr=0.1)
    controller.register_optimizer("host", optimizer, config)
    return controller, optimizer, told


@pytest.mark.parametrize("number", [lambda: torch.tensor(0.25), lambda: np.float32(0.25), lambda: Fraction(1, 4)])
def test_whatever_a_rate_is_given_as_it_becomes_a_float(number):
    """A tensor as a configured or ordered rate could be changed unnoticed."""
    base, order = number(), number()
    controller, optimizer, told = registered(GroupConfig("host", LRPolicy.LINEAR, base, min_lr=base, max_lr=base))
    assert type(optimizer.param_groups[0]["lr"]) is float
    optimizer.step()
    controller.step(1, {})
    controller.order("host", order, LRPolicy.CONSTANT, reason="test")
    for held in (base, order):
        if isinstance(held, torch.Tensor):
            held.fill_(9.0)
    optimizer.step()
    assert controller.step(1, {}) == {"host": 0.25}
    assert {type(rate) for rate in controller.row} == {float}
    assert told == []


@pytest.mark.parametrize("wrong", ["0.1", torch.ones(2)], ids=["text", "a vector"])
def test_a_rate_that_is_no_number_is_refused_by_name(wrong):
    """It is refused before anything is registered."""
    with pytest.raises(ValueError, match="group host: base_lr="):
        registered(GroupConfig("host", LRPolicy.CONSTANT, wrong))
