"""BLENDING and the stages after it: both ends are exact, and gradients reach host and seed by their shares."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.trainer.seeds.hosts import Shifting, backward, grown, pair
from tolariad.core.calc.seeds.stages import Stage
from tolariad.trainer.checkpoints.tensors import same_bits

SPECIAL = [-0.0, 0.0, float("inf"), float("-inf"), float("nan"), 1.0, -1e-40, 3.0]
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


class Constant(nn.Module):
    """A seed that returns these values."""

    def __init__(self, values: torch.Tensor) -> None:
        super().__init__()
        self.values = nn.Parameter(values)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return self.values * torch.ones_like(h)


@pytest.mark.parametrize("dtype", DTYPES)
def test_at_alpha_zero_the_output_is_the_input(dtype):
    """Bit for bit, even if the seed returns infinities and NaN."""
    h = torch.tensor(SPECIAL, dtype=dtype)
    slot = grown(Stage.BLENDING, Constant(torch.tensor(SPECIAL[::-1], dtype=dtype)))

    assert same_bits(slot(h).detach(), h)


@pytest.mark.parametrize("dtype", DTYPES)
def test_at_alpha_one_the_output_is_the_seed(dtype):
    """Bit for bit, even if the host returns infinities and NaN."""
    seed = Constant(torch.tensor(SPECIAL[::-1], dtype=dtype))
    h = torch.tensor(SPECIAL, dtype=dtype)
    slot = grown(Stage.BLENDING, seed)
    slot.set_alpha(1.0)

    assert same_bits(slot(h).detach(), seed(h).detach())


@pytest.mark.parametrize("stage", [Stage.SHADOWING, Stage.PROBATIONARY, Stage.FOSSILIZED])
def test_from_shadowing_on_the_output_is_the_seed(stage):
    """With the host's bits nowhere in it."""
    slot = grown(stage)
    h = torch.randn(4, 3)

    assert same_bits(slot(h).detach(), slot.seed(h).detach())


@pytest.mark.parametrize("alpha", [0.001, 0.25, 0.5, 0.999])
def test_between_the_ends_it_is_the_mixture(alpha):
    """h + alpha * (seed(h) - h), against float64."""
    slot = grown(Stage.BLENDING)
    slot.set_alpha(alpha)
    h = torch.randn(50, 3)
    wide = h.double()
    expected = wide + alpha * (wide * 1.5 + 0.25 - wide)

    assert torch.allclose(slot(h).double(), expected, rtol=1e-6, atol=1e-6)


def test_gradients_go_by_their_shares():
    """The host gets (1 - alpha) of the direct path, and alpha of the way through the seed."""
    slot = grown(Stage.BLENDING)
    slot.set_alpha(0.25)
    h = torch.randn(4, 3, requires_grad=True)
    slot(h).sum().backward()

    assert torch.allclose(h.grad, torch.full((4, 3), 0.75 + 0.25 * 1.5))
    assert torch.allclose(slot.seed.shift.grad, torch.tensor(0.25 * 12))
    assert torch.allclose(slot.seed.scale.grad, 0.25 * h.sum())


@pytest.mark.parametrize(("alpha", "of_seed"), [(0.0, 0.0), (1.0, 12.0)])
def test_gradients_at_the_ends_are_exact(alpha, of_seed):
    """At 0 the host gets all of it and the seed zeros; at 1 the other way round, and through the seed."""
    slot = grown(Stage.BLENDING)
    slot.set_alpha(alpha)
    h = torch.randn(4, 3, requires_grad=True)
    slot(h).sum().backward()

    assert torch.equal(h.grad, torch.full((4, 3), 1.5 if alpha else 1.0))
    assert slot.seed.shift.grad.item() == of_seed


def test_at_alpha_zero_a_seed_that_overflows_leaves_the_host_whole():
    """Its gradient is not finite, and is dropped; the host's is what it was."""
    slot = grown(Stage.BLENDING)
    with torch.no_grad():
        slot.seed.scale.fill_(3e38)
    h = torch.full((4, 3), 100.0, requires_grad=True)
    slot(h).square().sum().backward()

    assert torch.equal(h.grad, torch.full((4, 3), 200.0))


def test_the_move_into_blending_does_not_move_the_function():
    """TRAINING, and BLENDING at 0, give the same output of the model, and both that without a slot."""
    plain, other, slot, x = pair("attention", Stage.TRAINING)
    outputs = [backward(plain, x), backward(other, x)]
    slot.enter(Stage.BLENDING)
    outputs.append(backward(other, x))
    slot.set_alpha(0.5)
    moved = backward(other, x)

    assert same_bits(outputs[0], outputs[1])
    assert same_bits(outputs[0], outputs[2])
    assert not torch.equal(outputs[0], moved)


def test_the_last_step_of_blending_does_not_move_the_function():
    """BLENDING at 1, and SHADOWING, give the same output."""
    _, other, slot, x = pair("mlp", Stage.BLENDING)
    slot.set_alpha(1.0)
    before = backward(other, x)
    slot.enter(Stage.SHADOWING)

    assert same_bits(before, backward(other, x))


def test_a_retained_graph_survives_the_next_alpha():
    """Autograd keeps the alpha of the forward pass."""
    slot = grown(Stage.BLENDING)
    slot.set_alpha(0.25)
    h = torch.randn(4, 3, requires_grad=True)
    loss = slot(h).sum()
    slot.set_alpha(0.75)
    loss.backward()

    assert torch.allclose(slot.seed.shift.grad, torch.tensor(0.25 * 12))


@pytest.mark.parametrize("stage", [Stage.BLENDING, Stage.FOSSILIZED])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_output_keeps_the_dtype_of_the_input(stage, dtype):
    """Also if the seed computes in another one."""
    slot = grown(stage, Shifting().double())
    slot.set_alpha(0.5)

    assert slot(torch.randn(4, 3, dtype=dtype)).dtype == dtype


@pytest.mark.parametrize("stage", [Stage.TRAINING, Stage.BLENDING, Stage.FOSSILIZED])
def test_gradients_of_gradients_agree_with_differences(stage):
    """In float64, against finite differences, for the host's input."""
    slot = grown(stage, nn.Sequential(nn.Linear(3, 3), nn.Tanh())).double()
    slot.set_alpha(0.25)
    h = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)

    assert torch.autograd.gradgradcheck(lambda x: slot(x).pow(2), (h,))


def test_layouts_survive_blending():
    """channels_last in, channels_last out."""
    slot = grown(Stage.BLENDING)
    slot.set_alpha(0.5)
    h = torch.randn(2, 4, 6, 8).contiguous(memory_format=torch.channels_last)

    assert slot(h).is_contiguous(memory_format=torch.channels_last)
