"""The comparison of a masked model with a smaller one."""

from __future__ import annotations

import copy
import random

import torch

from tolariad.trainer.pruning.removal import remove
from tolariad.trainer.pruning.units import removed
from tolariad.trainer.pruning.verify import zero


def same_without(model, inputs, groups, seed):
    """Assert that a masked copy and a smaller one give the same outputs and gradients. Return the smaller one."""
    draw = random.Random(seed)
    chosen = {group.name: draw.sample(range(group.width), draw.randint(1, group.width - 1)) for group in groups}
    masked, small = copy.deepcopy(model), copy.deepcopy(model)
    gone = removed(groups, chosen)
    zero(dict(masked.named_parameters()), gone.parameters)
    remove(small, gone)

    outputs = [one(inputs) for one in (masked, small)]
    assert torch.allclose(*outputs, rtol=0, atol=1e-12)
    for one in outputs:
        one.square().sum().backward()
    for (name, whole), part in zip(masked.named_parameters(), small.parameters(), strict=True):
        gradient = whole.grad
        if gradient is None:
            assert part.grad is None
            continue
        for dim, indices in gone.parameters.get(name, {}).items():
            keep = [index for index in range(whole.shape[dim]) if index not in indices]
            gradient = gradient.index_select(dim, torch.tensor(keep))
        assert gradient.shape == part.shape
        assert torch.allclose(gradient, part.grad, rtol=1e-10, atol=1e-10), name
    return small
