"""What a GradScaler knows of gradients is read without `GradScaler.step`, in both ways."""

from __future__ import annotations

import pytest
import torch

from tests.trainer.torch_private.ways import way
from tolariad.trainer.torch_private import scaling

__all__ = ["way"]


@pytest.mark.parametrize("bad", [None, float("inf"), float("nan")])
def test_an_overflow_is_known_after_unscaling(way, bad):
    """As `GradScaler.step` would see it, which makes no update then."""
    parameters = [torch.nn.Parameter(torch.ones(3)) for _ in range(3)]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(torch.ones(()))
    for parameter in parameters[:2]:
        parameter.grad = torch.full((3,), 8.0)
    if bad is not None:
        parameters[1].grad[2] = bad
    scaler.unscale_(optimizer)
    found = scaling.overflows_of(scaler, optimizer)
    assert (sum(float(one) for one in found) > 0) == (bad is not None)
    scaler.step(optimizer)
    assert (float(parameters[0][0].detach()) == 1.0) == (bad is not None)


def test_the_scale_is_a_tensor():
    """That of the next backward pass."""
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    assert scaling.scale_of(scaler, torch.ones(2)).item() == 64.0
