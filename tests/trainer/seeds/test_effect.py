"""The effect of a seed on the validation is measured on the same parts with it and without it, and changes nothing."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional

from tolariad.core.calc.seeds.stages import Stage
from tolariad.trainer.data.feed import TensorFeed
from tolariad.trainer.seeds import effect
from tolariad.trainer.seeds.effect import measure_effect
from tolariad.trainer.seeds.slot import SeedSlot
from tolariad.trainer.step.validate import validate


class Doubling(nn.Module):
    def forward(self, inputs):
        return 2.0 * inputs


def setup_of(samples, batch, noise=0.0):
    """A model that passes its input through a slot. The target is twice the input, so the seed is perfect."""
    torch.manual_seed(4)
    slot = SeedSlot("one")
    slot.seed = Doubling()
    slot.enter(Stage.PROBATIONARY)
    inputs = torch.randn(samples, 3)
    targets = 2.0 * inputs + noise * torch.randn(samples, 3)

    def evaluate(model, given):
        return {"loss": functional.mse_loss(model(given[0]), given[1])}

    return SimpleNamespace(
        model=nn.Sequential(slot, nn.BatchNorm1d(3, affine=False)) if noise else nn.Sequential(slot),
        task=SimpleNamespace(evaluate=evaluate),
        validation=TensorFeed([inputs, targets], batch, None),
        average=None,
        rng_seed=1,
        device=torch.device("cpu"),
        moves=False,
        forward=torch.no_grad,
        settings=None,
    ), slot


@pytest.mark.parametrize(("samples", "batch", "parts"), [(24, 24, 12), (640, 20, 32), (5, 5, 5)])
def test_a_set_of_few_batches_is_divided_so_that_its_noise_is_known(samples, batch, parts):
    """Into sixteen parts at most, of equal size; one of many batches is taken as it is."""
    setup, slot = setup_of(samples, batch)
    found = measure_effect(setup, slot, lambda: None)

    assert found.parts == parts
    assert found.gain > 0.0
    assert found.error > 0.0


def test_the_gain_is_the_difference_of_the_validations():
    """With the seed nothing is left of the loss; without it the loss is the mean square of the inputs."""
    setup, slot = setup_of(64, 4)
    before = {name: tensor.clone() for name, tensor in setup.model.state_dict().items()}
    with slot.bypassed():
        without = validate(setup, lambda: None).means["loss"]
    found = measure_effect(setup, slot, lambda: None)

    assert found.gain == pytest.approx(without)
    assert validate(setup, lambda: None).means["loss"] == 0.0, "the seed is back in its place"
    assert all(torch.equal(tensor, before[name]) for name, tensor in setup.model.state_dict().items())


def test_without_a_validation_or_its_loss_nothing_is_measured():
    """A loop of the user's own validates itself."""
    setup, slot = setup_of(8, 4)
    setup.task.evaluate = lambda model, given: {"accuracy": 0.5}
    assert measure_effect(setup, slot, lambda: None) is None
    setup.validation = None
    assert measure_effect(setup, slot, lambda: None) is None


def test_batches_that_are_no_tensors_are_taken_whole():
    """A task's own kind of batch may not be cut."""
    (whole,) = effect._pieces({"a": torch.zeros(4)}, 4)
    assert list(whole) == ["a"]
    (whole,) = effect._pieces((torch.zeros(4), torch.zeros(3)), 4)
    assert len(whole) == 2
    assert [len(one) for one in effect._pieces(torch.zeros(5), 2)] == [3, 2]
