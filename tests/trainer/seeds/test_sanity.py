"""Gate G0: a seed that may not germinate is refused with its reason, and the check leaves no trace."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest
import torch
from torch import nn

from tests.trainer.seeds.hosts import Shifting
from tolariad.trainer.seeds import SeedSlot, find_blueprint, sanity
from tolariad.trainer.seeds.blueprints import Grown

EXAMPLE = torch.zeros(4, 6)
HOST = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))


class Doing(nn.Module):
    """A seed that does something to its input, with a parameter to learn."""

    def __init__(self, do) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))
        self.do = do

    def forward(self, h):
        return self.do(h + self.weight * h, h)


def not_finite() -> nn.Module:
    seed = Doing(lambda out, _: out)
    seed.weight.data.fill_(float("nan"))
    return seed


def frozen() -> nn.Module:
    return find_blueprint("low_rank").build(EXAMPLE).requires_grad_(False)


def dead() -> nn.Module:
    """Two factors of zero: neither ever gets a gradient."""
    seed = find_blueprint("low_rank").build(EXAMPLE)
    nn.init.zeros_(seed.branch[0].weight)
    return seed


def dropping() -> nn.Module:
    return nn.Sequential(find_blueprint("low_rank").build(EXAMPLE), nn.Dropout(0.5))


MOODS = iter(range(1, 100))


def with_buffer(value: float) -> nn.Module:
    seed = Doing(lambda out, _: out)
    seed.register_buffer("running", torch.tensor(value))
    return seed


def viewing() -> nn.Module:
    seed = nn.Linear(6, 6)
    seed.weight = nn.Parameter(HOST[0].weight.detach().T)
    return seed


REFUSED = {
    "no module": (lambda: 3, "returned a int, not a torch.nn.Module"),
    "lazy": (lambda: nn.LazyLinear(6), "the seed's weight is lazy"),
    "another device": (lambda: nn.Linear(6, 6, device="meta"), "weight is on meta, its slot on cpu; build it there"),
    "not finite": (not_finite, "the seed's weight is not finite"),
    "a statistic that is not finite": (lambda: with_buffer(float("inf")), "the seed's running is not finite"),
    "no parameters": (nn.Identity, "no parameter that can learn"),
    "frozen": (frozen, "no parameter that can learn"),
    "a slot inside": (lambda: nn.Sequential(nn.Linear(6, 6), SeedSlot("x")), "has a slot itself"),
    "the host's layer": (lambda: HOST[1], "the seed's weight is the model's 1.weight"),
    "a view of the host": (viewing, "the seed's weight is the model's 0.weight"),
    "it raises": (lambda: nn.Linear(5, 5), r"raises RuntimeError on an input of shape \(4, 6\)"),
    "a tuple": (lambda: Doing(lambda out, _: (out,)), "returns a tuple, not a tensor"),
    "another shape": (
        lambda: Doing(lambda out, _: out[:, :3]),
        r"returns shape \(4, 3\) for an input of shape \(4, 6\)",
    ),
    "another dtype": (lambda: Doing(lambda out, _: out.double()), "returns dtype torch.float64 for an input of dtype"),
    "in place": (lambda: Doing(lambda out, h: (out, h.relu_())[0]), "writes to its input"),
    "moods": (lambda: Doing(lambda out, _: out * next(MOODS)), "returns different values for the same input"),
    "not the identity": (Shifting, r"not the identity: in train mode it changes its input by up to 1\.\d+"),
    "dropout of all": (dropping, "not the identity: in train mode"),
    "NaN": (lambda: Doing(lambda out, _: out * float("nan")), "returns different values|not the identity"),
    "it never learns": (dead, "no gradient reaches any parameter of the seed"),
}


@pytest.mark.parametrize("kind", list(REFUSED))
def test_a_seed_that_may_not_germinate_is_refused(kind):
    """A sentence that names the reason."""
    make, message = REFUSED[kind]

    assert re.search(message, sanity(make(), EXAMPLE, HOST))


GOOD = {
    "low_rank": lambda: find_blueprint("low_rank").build(EXAMPLE),
    "with a norm": lambda: Grown(nn.Sequential(nn.BatchNorm1d(6), find_zero())),
    "with dropout inside": lambda: Grown(nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5), find_zero())),
    "rounding": lambda: Doing(lambda out, _: (out * 3.0) / 3.0),
}


def find_zero() -> nn.Module:
    layer = nn.Linear(6, 6)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


@pytest.mark.parametrize("kind", list(GOOD))
def test_a_good_seed_passes(kind):
    """Norms, draws inside, and rounding of the dtype are allowed."""
    assert sanity(GOOD[kind](), EXAMPLE, HOST) == ""


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_rounding_is_judged_by_the_dtype(dtype):
    """A hundredth is an error in every dtype, an epsilon in none."""
    example = EXAMPLE.to(dtype)
    good = Doing(lambda out, _: out * (1 + torch.finfo(dtype).eps)).to(dtype)
    bad = Doing(lambda out, _: out * 1.2).to(dtype)

    assert sanity(good, example) == ""
    assert "not the identity" in sanity(bad, example)


def test_the_check_leaves_no_trace():
    """No draw from any generator, no gradient, no statistic, no change of mode."""
    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)
    seed = Grown(nn.Sequential(nn.BatchNorm1d(6), nn.Dropout(0.5), find_zero())).eval()
    states = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    buffers = {name: buffer.clone() for name, buffer in seed.named_buffers()}
    assert sanity(seed, EXAMPLE, HOST) == ""

    assert torch.equal(torch.get_rng_state(), states[0])
    assert (np.random.get_state()[1].tolist(), random.getstate()) == states[1:]
    assert all(torch.equal(buffer, buffers[name]) for name, buffer in seed.named_buffers())
    assert all(parameter.grad is None for parameter in seed.parameters())
    assert not any(module.training for module in seed.modules())


def test_the_check_works_without_gradients_around_it():
    """A boundary may be in no_grad."""
    with torch.no_grad():
        assert sanity(GOOD["low_rank"](), EXAMPLE, HOST) == ""
