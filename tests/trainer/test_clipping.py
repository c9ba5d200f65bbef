"""A task that clips returns the norm before clipping, for the detector. A task that returns none is refused."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn

from tests.trainer.bare_setup import CPU, setup_of
from tolariad.core.calc.detection.rules import Finding, Signal
from tolariad.core.calc.settings.model import Detect
from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.health.monitor import Monitor
from tolariad.trainer.step.gradients import forward_backward

LARGEST = 0.5


def before(model):
    """Clip as torch does, and return the norm before."""
    return nn.utils.clip_grad_norm_(model.parameters(), LARGEST)


def after(model):
    """Clip and return the norm after clipping, which is wrong."""
    before(model)
    return nn.utils.get_total_norm([parameter.grad for parameter in model.parameters()])


def clipped(clip):
    """Return a run with a constant loss and a gradient whose size the batch determines."""

    def loss(model, batch):
        steep = model.weight.sum() * batch
        return 1.0 + 0.01 * torch.sin(batch) + steep - steep.detach()

    model = nn.Linear(4, 1, bias=False)
    return setup_of(model, loss, clip)


@pytest.mark.parametrize(("clip", "is_found"), [(before, True), (after, False)])
def test_the_norm_before_clipping_is_judged(clip, is_found, seed):
    """After a hundred steps with a norm near 2, all clipped, one of 2000 is found by the norm; the loss is constant.

    A task that returns the norm after its clipping hides a spike: the detector takes the norm as it is given.
    """
    draw, setup = random.Random(seed), clipped(clip)
    watch = Monitor(setup.model, CPU, Detect(), reads_late=False)
    for step in range(1, 101):
        setup.model.zero_grad()
        measured = forward_backward(setup, [torch.tensor(draw.uniform(0.9, 1.1))], step)
        assert watch.check(measured, None, step).verdict is None
        assert setup.model.weight.grad.norm() <= LARGEST * 1.001
    setup.model.zero_grad()
    measured = forward_backward(setup, [torch.tensor(1000.0)], 101)
    verdict = watch.check(measured, None, 101).verdict

    assert (measured.grad_norm > 1000.0) is is_found
    assert (verdict is not None) is is_found
    if verdict is not None:
        assert (verdict.finding, verdict.signal) == (Finding.SPIKE, Signal.GRAD_NORM)


@pytest.mark.parametrize("given", [3.5, np.float32(3.5), torch.tensor(3.5), torch.tensor([3.5]), 3])
def test_a_norm_may_be_any_number(given):
    """Of Python, NumPy or torch."""
    setup = clipped(lambda model: given)
    assert forward_backward(setup, [torch.tensor(1.0)]).grad_norm == pytest.approx(float(given))


@pytest.mark.parametrize("given", [None, "3.5", torch.zeros(2), torch.zeros(0), torch.tensor(1j), [1.0, 2.0]])
def test_what_is_no_norm_is_refused_with_what_is_wanted(given):
    """`clip_grad_value_` returns nothing, and so does a method without a return."""
    with pytest.raises(SetupRefused, match=r"clip_gradients\(model\) must return the norm .* before clipping"):
        forward_backward(clipped(lambda model: given), [torch.tensor(1.0)])
