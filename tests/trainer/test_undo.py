"""The copy from before a step gives back all that an optimizer changes: values, entries, options."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from tolariad.trainer.step.undo import UpdateBackup


class Counting(torch.optim.SGD):
    """An optimizer with a count and a list in its state, and a number and a tensor among its options."""

    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            group["made"] = group.get("made", 0) + 1
            group.setdefault("scale", torch.ones(1)).mul_(2.0)
            for parameter in group["params"]:
                state = self.state[parameter]
                state["count"] = state.get("count", 0) + 1
                state.setdefault("seen", []).append(state["count"])


KINDS = {
    "adam": torch.optim.Adam,
    "momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    "counting": lambda p: Counting(p, 0.1, momentum=0.9),
}


def same(a, b) -> bool:
    """Equal keys, types and values, bit for bit."""
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_two_updates_are_undone_and_training_goes_on_as_without_them(kind, before):
    """Also those that make the first entries of a state. The tensors are the same objects; rates are not touched."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    optimizer, backup = KINDS[kind](model.parameters()), UpdateBackup()

    def step():
        model.zero_grad()
        model(torch.ones(2, 3)).square().mean().backward()
        optimizer.step()

    for _ in range(before):
        step()
    for _ in range(3):
        was, weight = copy.deepcopy((optimizer.state_dict(), model.state_dict())), model[0].weight.clone()
        backup.begin()
        for _ in range(2):
            backup.keep(optimizer)
            step()
        assert not torch.equal(model[0].weight, weight)
        optimizer.param_groups[0]["lr"] = 0.05
        was[0]["param_groups"][0]["lr"] = 0.05
        assert backup.put_back()
        assert same(optimizer.state_dict(), was[0])
        assert torch.equal(model[0].weight, weight)
        assert not backup.put_back()
        step()


def test_a_parameter_of_another_shape_gets_a_copy_of_that_shape():
    """After a change of the model the old memory is not used."""
    first, second = (nn.Parameter(torch.ones(size)) for size in (3, 5))
    optimizer, backup = torch.optim.SGD([first], 0.1), UpdateBackup()
    for parameter in (first, second):
        optimizer.param_groups[0]["params"][:] = [parameter]
        parameter.grad = torch.ones_like(parameter)
        backup.begin()
        backup.keep(optimizer)
        optimizer.step()
        assert backup.put_back()
        assert torch.equal(parameter, torch.ones_like(parameter))
