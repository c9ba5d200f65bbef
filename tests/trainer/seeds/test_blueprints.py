"""Built-in blueprints: the identity at birth by every bit, the parameters of the example, a gradient to learn by."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from tolariad.core.calc.seeds.stages import Stage
from tolariad.trainer.checkpoints.tensors import same_bits
from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.seeds import SeedSlot, find_blueprint, sanity

SHAPES = {
    "bottleneck": [(5,), (4, 8), (4, 1), (2, 3, 8), (2, 6, 5, 5), (2, 4, 3, 3, 3)],
    "low_rank": [(5,), (4, 8), (4, 1), (2, 3, 8), (2, 6, 5, 5), (2, 4, 3, 3, 3)],
    "conv": [(2, 6, 9), (2, 6, 5, 5), (2, 4, 3, 3, 3)],
}
CASES = [(name, shape) for name, shapes in SHAPES.items() for shape in shapes]


def inputs(shape: tuple[int, ...], dtype: torch.dtype) -> list[torch.Tensor]:
    """Return inputs that are hard to return unchanged: zeros of both signs, negative, tiny and huge numbers."""
    generator = torch.Generator().manual_seed(5)
    some = torch.randn(shape, generator=generator)
    signs = torch.where(some > 0, 0.0, -0.0)
    return [one.to(dtype) for one in (some, -some.abs(), signs, torch.full(shape, -0.0), some * 1e-39, some * 1e3)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("name", "shape"), CASES)
def test_a_new_seed_returns_every_bit(name, shape, dtype):
    """Also the sign of zero; and it passes its own gate."""
    torch.manual_seed(2)
    example = torch.zeros(shape, dtype=dtype)
    seed = find_blueprint(name).build(example)

    assert sanity(seed, example) == ""
    for h in inputs(shape, dtype):
        assert same_bits(seed(h).detach(), h), h
    assert {parameter.dtype for parameter in seed.parameters()} == {dtype}


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_a_germination_is_not_seen_even_of_numbers_that_are_not_finite(name, shape):
    """A new seed makes NaN of an infinity, but up to the first step of blending nobody sees its output."""
    slot = SeedSlot("a")
    slot.plant(find_blueprint(name).build(torch.zeros(shape)))
    h = torch.randn(shape)
    h.view(-1)[0], h.view(-1)[1] = float("inf"), float("nan")
    for stage in (Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING):
        slot.enter(stage)

        assert same_bits(slot(h).detach(), h)


@pytest.mark.parametrize(("name", "shape"), [(name, shape) for name, shape in CASES if shape in {(4, 8), (2, 6, 5, 5)}])
def test_a_seed_learns_to_be_something_else(name, shape):
    """A few updates towards the double of its input bring it nearer."""
    torch.manual_seed(2)
    seed = find_blueprint(name).build(torch.zeros(shape))
    optimizer = torch.optim.Adam(seed.parameters(), 0.1)
    h = torch.randn(shape)
    losses = []
    for _ in range(15):
        optimizer.zero_grad()
        loss = (seed(h) - 2 * h).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.parametrize("name", list(SHAPES))
def test_equal_draws_build_equal_seeds(name):
    """A restart, or a run again, builds the same bits on the same state of the generators."""
    seeds = []
    for _ in range(2):
        torch.manual_seed(4)
        seeds.append(find_blueprint(name).build(torch.zeros(2, 6, 5, 5)))

    assert all(same_bits(one, other) for one, other in zip(*(seed.parameters() for seed in seeds), strict=True))
    assert any(parameter.abs().sum() > 0 for parameter in seeds[0].parameters()), "something is drawn"


@pytest.mark.parametrize("name", list(SHAPES))
def test_the_layout_of_images_survives(name):
    """channels_last in, channels_last out."""
    h = torch.randn(2, 6, 5, 5).contiguous(memory_format=torch.channels_last)
    seed = find_blueprint(name).build(torch.zeros(2, 6, 5, 5))

    assert seed(h).is_contiguous(memory_format=torch.channels_last)
    assert same_bits(seed(h).detach(), h)


def test_low_rank_is_as_lora_does_it():
    """h + B A h, with A as nn.Linear draws it, and B zero, without offsets."""
    torch.manual_seed(4)
    seed = find_blueprint("low_rank", {"rank": 3.0}).build(torch.zeros(2, 8))
    down, up = seed.branch
    torch.manual_seed(4)
    expected = nn.Linear(8, 3, bias=False)
    assert torch.equal(down.weight, expected.weight)
    assert [tuple(one.shape) for one in seed.parameters()] == [(3, 8), (8, 3)]
    with torch.no_grad():
        up.weight.normal_()
    h = torch.randn(2, 8)

    assert torch.allclose(seed(h), h + h @ down.weight.T @ up.weight.T, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "options", "shape", "count"),
    [
        ("bottleneck", {}, (2, 8), 8 * 2 + 2 + 2 * 8 + 8),
        ("bottleneck", {"reduction": 8.0}, (2, 8), 8 + 1 + 8 + 8),
        ("bottleneck", {"reduction": 2.0}, (2, 8, 3, 3), 8 * 4 + 4 + 4 * 8 + 8),
        ("bottleneck", {"axis": 1.0}, (2, 4, 9), 4 + 1 + 4 + 4),
        ("bottleneck", {"axis": -1.0}, (2, 3, 3, 4), 4 + 1 + 4 + 4),
        ("low_rank", {}, (2, 4), 4 * 4 * 2),
        ("low_rank", {"rank": 1.0, "axis": 1.0}, (2, 4, 3), 8),
        ("conv", {}, (2, 4, 5, 5), 4 * 9 + 4 + 16 + 4),
        ("conv", {"kernel": 5.0}, (2, 4, 9), 4 * 5 + 4 + 16 + 4),
    ],
)
def test_options_give_the_size(name, options, shape, count):
    """Counted by hand."""
    seed = find_blueprint(name, options).build(torch.zeros(shape))

    assert sum(parameter.numel() for parameter in seed.parameters()) == count
    assert math.isclose(seed(torch.ones(shape)).mean().item(), 1.0)


REFUSED = {
    "even kernel": ("conv", {"kernel": 4.0}, (2, 4, 5, 5), "kernel of conv must be 1, 3, 5"),
    "vectors": ("conv", {}, (2, 4), r"conv needs an input .*shape \(2, 4\); use bottleneck or low_rank"),
    "no rank": ("low_rank", {"rank": 0.0}, (2, 4), "rank of low_rank must be at least 1, not 0"),
    "nan": ("bottleneck", {"reduction": float("nan")}, (2, 4), "reduction of bottleneck must be at least 1"),
    "axis": ("bottleneck", {"axis": 2.0}, (2, 4), "axis of bottleneck must be 1 or -1"),
    "scalar": ("bottleneck", {}, (), r"cannot find the channels of shape \(\); set axis"),
    "six": ("low_rank", {"axis": 1.0}, (1,) * 6, "cannot find the channels"),
}


@pytest.mark.parametrize("kind", list(REFUSED))
def test_options_and_shapes_that_cannot_be_are_refused(kind):
    """By name, with what would do."""
    name, options, shape, message = REFUSED[kind]

    with pytest.raises(SetupRefused, match=message):
        find_blueprint(name, options).build(torch.zeros(shape))
