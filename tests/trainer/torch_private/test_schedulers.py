"""What a scheduler of torch leaves behind, in both ways."""

from __future__ import annotations

import torch
from torch.optim.lr_scheduler import StepLR

from tests.trainer.torch_private.ways import way
from tolariad.trainer.torch_private import schedulers

__all__ = ["way"]


def test_an_optimizer_with_a_scheduler_is_marked(way):
    """The public way does not know the mark."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.5)
    assert schedulers.is_marked(optimizer) is (False if way == "private" else None)
    scheduler = StepLR(optimizer, 1, gamma=0.5)
    assert schedulers.is_marked(optimizer) is (True if way == "private" else None)
    assert schedulers.last_rates(scheduler) == [0.5]
    optimizer.step()
    scheduler.step()
    assert schedulers.last_rates(scheduler) == [0.25]
    assert schedulers.last_rates(object()) == []
