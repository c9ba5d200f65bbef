"""The price of a step of several updates: the copy that an undo needs, beside the updates themselves."""

from __future__ import annotations

import statistics
import time

import pytest
import torch
from torch import nn

from tolariad.trainer.step.undo import UpdateBackup

# Width and number of layers.
SIZES = {
    "10 tensors, 21 k": (64, 5),
    "10 tensors, 1 M": (450, 5),
    "10 tensors, 20 M": (2000, 5),
    "100 tensors, 1 M": (141, 50),
}
ROUNDS = 30


def timed(call) -> float:
    begun = time.perf_counter()
    call()
    return (time.perf_counter() - begun) * 1e6


@pytest.mark.bench
def test_the_price_of_the_copy_is_printed():
    """Microseconds of a copy of parameters and Adam's state, and of the optimizer's own step; the median."""
    torch.set_num_threads(1)
    print(f"\n{'us':20s}{'copy':>10s}{'step':>10s}{'put back':>10s}{'bytes':>14s}")
    for name, (width, layers) in SIZES.items():
        copied, stepped, back, held = measured(nn.Sequential(*(nn.Linear(width, width) for _ in range(layers))))
        print(f"{name:20s}{copied:10.0f}{stepped:10.0f}{back:10.0f}{held:14,d}")


def measured(model: nn.Module) -> tuple[float, float, float, int]:
    """The medians of a copy and of a step, the time of an undo, and the bytes that are held."""
    optimizer, backup = torch.optim.Adam(model.parameters()), UpdateBackup()
    parameters = list(model.parameters())
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    columns = []
    for _ in range(ROUNDS):
        backup.begin()
        columns.append((timed(lambda: backup.keep(optimizer)), timed(optimizer.step)))
    back = timed(backup.put_back)
    copied, stepped = (statistics.median(column) for column in zip(*columns[2:], strict=True))
    held = sum(kept.nbytes for copy in backup._memory.values() for kept in copy._copies)
    assert held == sum(3 * parameter.nbytes + 4 for parameter in parameters)
    return copied, stepped, back, held
