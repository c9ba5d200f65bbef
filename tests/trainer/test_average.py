"""The moving average follows its formula, and training never sees it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tolariad.trainer.optim.average import Average


def values_of(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_each_step_moves_the_average_by_its_share():
    """From the initial weights, by 1 - decay of the distance."""
    model = nn.Linear(2, 3)
    average = Average(model, 0.9)
    expected = model.weight.detach().clone()
    for _ in range(5):
        with torch.no_grad():
            model.weight.add_(torch.randn(3, 2))
        average.update()
        expected = 0.9 * expected + 0.1 * model.weight.detach()
    torch.testing.assert_close(average.tensors["weight"], expected)
    assert torch.equal(average.tensors["bias"], model.bias)


def test_what_is_tied_is_averaged_once_and_buffers_are_not():
    """The names are those of a checkpoint's model file, without further names and without buffers."""
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 2))
    model[2].weight = model[0].weight
    assert list(Average(model, 0.5).tensors) == ["0.weight", "0.bias", "1.weight", "1.bias", "2.bias"]


def evaluate_with(average, weight, expected):
    """Read a weight inside the block, then raise like a failing evaluation."""
    with average.applied():
        assert torch.equal(weight, expected)
        raise ZeroDivisionError


@pytest.mark.parametrize("shared", [False, True], ids=["apart", "in one memory"])
def test_an_applied_average_leaves_every_bit_where_it_was(shared):
    """In the block the model has the averages; afterwards both are restored, also after an exception."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    if shared:
        model[1].weight.data = model[0].weight.data
    average = Average(model, 0.9)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(float("nan") if parameter.ndim == 1 else 3.0)
        model[0].bias.fill_(-0.0)
    average.update()
    weights, averages = values_of(model), {name: tensor.clone() for name, tensor in average.tensors.items()}
    places = [parameter.data_ptr() for parameter in model.parameters()]
    with pytest.raises(ZeroDivisionError):
        evaluate_with(average, model[1].weight, averages["1.weight"])
    assert [tensor.numpy().tobytes() for tensor in model.state_dict().values()] == [
        tensor.numpy().tobytes() for tensor in weights.values()
    ]
    assert {name: tensor.numpy().tobytes() for name, tensor in average.tensors.items()} == {
        name: tensor.numpy().tobytes() for name, tensor in averages.items()
    }
    assert [parameter.data_ptr() for parameter in model.parameters()] == places


def test_values_are_taken_over_by_copy():
    """Loaded values are copied; `begin_anew` starts at the current weights."""
    model = nn.Linear(1, 1)
    average = Average(model, 0.0)
    held = {name: torch.full_like(tensor, 7.0) for name, tensor in average.tensors.items()}
    average.load(held)
    assert same(average.tensors, held)
    average.update()
    assert same(average.tensors, dict(model.named_parameters()))
    assert float(held["bias"]) == 7.0
    average.load(held)
    average.begin_anew()
    assert same(average.tensors, dict(model.named_parameters()))
