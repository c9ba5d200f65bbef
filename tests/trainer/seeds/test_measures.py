"""Measurements for the gates: right by hand, seen through the compiler, and without a trace."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
import torch
from torch import nn

from tests.trainer.seeds.hosts import HOSTS, Shifting, pair
from tests.trainer.seeds.isolation import isolation_violations
from tolariad.core.calc.seeds.stages import Stage
from tolariad.trainer.checkpoints.tensors import same_bits
from tolariad.trainer.seeds import (
    drift,
    find_blueprint,
    latency_ms,
    non_finite,
    reached_by,
)


def test_numbers_that_are_not_finite_are_counted():
    """Infinities and NaN, over all parameters."""
    seed = nn.Linear(3, 3)
    with torch.no_grad():
        seed.weight[0, 0], seed.weight[1, 1], seed.bias[2] = float("nan"), float("inf"), float("-inf")

    assert non_finite(seed) == 3
    assert non_finite(nn.Linear(3, 3)) == 0


def test_drift_is_relative():
    """1.5 h + 0.25 - h over h, by hand; a new seed has none."""
    h = torch.randn(50, 6)

    assert drift(Shifting(), h) == pytest.approx((0.5 * h + 0.25).norm().item() / h.norm().item(), rel=1e-5)
    assert drift(find_blueprint("bottleneck").build(h), h) == 0.0


def test_drift_of_no_input_is_said():
    """0 over 0 is 0; something over 0 is infinite; NaN stays NaN."""
    zeros = torch.zeros(4, 6)

    assert drift(nn.Linear(6, 6, bias=False), zeros) == 0.0
    assert drift(Shifting(), zeros) == math.inf
    assert math.isnan(drift(Shifting(), zeros * float("nan")))


def test_drift_in_half_precision_does_not_overflow():
    """The squares of a large half-precision input are beyond its range."""
    h = torch.full((1000,), 300.0, dtype=torch.float16)

    assert drift(Shifting().half(), h) == pytest.approx(0.5, rel=1e-2)


@pytest.mark.parametrize("measure", [drift, latency_ms])
def test_measuring_leaves_no_trace(measure):
    """Statistics, draws, modes, gradients."""
    seed = nn.Sequential(nn.BatchNorm1d(6), nn.Dropout(0.5)).train()
    before = {name: buffer.clone() for name, buffer in seed.named_buffers()}
    state = torch.get_rng_state()
    value = measure(seed, torch.randn(4, 6, generator=torch.Generator().manual_seed(1)))

    assert value >= 0
    assert torch.equal(torch.get_rng_state(), state)
    assert all(same_bits(buffer, before[name]) for name, buffer in seed.named_buffers())
    assert all(module.training for module in seed.modules())
    assert all(parameter.grad is None for parameter in seed.parameters())


def test_latency_is_of_one_pass():
    """A seed that sleeps takes at least as long as it sleeps, and less than all passes together."""

    class Sleeping(nn.Module):
        def forward(self, h):
            torch.mm(torch.zeros(400, 400), torch.zeros(400, 400))
            return h

    quick, slow = latency_ms(nn.Identity(), torch.zeros(1)), latency_ms(Sleeping(), torch.zeros(1))

    assert 0 <= quick < slow


@pytest.mark.parametrize("drop", [0.0, 0.5])
@pytest.mark.parametrize("kind", list(HOSTS))
def test_a_seed_in_training_is_isolated(kind, drop):
    """No gradient of the host differs from that of a model without the seed."""
    _, model, slot, x = pair(kind, Stage.TRAINING, Shifting(drop))
    assert isolation_violations(model, lambda: model(x).square().sum()) == 0
    assert slot.stage is Stage.TRAINING


LEAKS = {
    # A parameter of the host inside the seed's graph.
    "a shared parameter": lambda model, slot: slot.seed.register_parameter("scale", model[1].weight),
    # Its output would be another one.
    "a path that is not TRAINING's": lambda model, slot: setattr(slot, "_path", 3),
    # Its draws shift those of the host's dropout.
    "draws that nobody fences": lambda model, slot: setattr(slot, "_draws", False),
}


@pytest.mark.parametrize("kind", list(LEAKS))
def test_a_seed_that_reaches_the_host_is_found(kind):
    """The oracle can fail."""
    _, model, slot, x = pair("mlp", Stage.TRAINING, Shifting(0.5))
    LEAKS[kind](model, slot)

    assert isolation_violations(model, lambda: model(x).square().sum()) > 0


class Borrowing(nn.Module):
    """A seed with a parameter of its own, which uses one of the host without being its owner."""

    def __init__(self, theirs):
        super().__init__()
        self.own = nn.Parameter(torch.ones(()))
        self.theirs = [theirs]
        self.mean = nn.BatchNorm1d(6)

    def forward(self, h):
        return self.mean(h) * self.own + h @ self.theirs[0]


def test_a_parameter_that_a_seed_borrows_is_found():
    """No list of its parameters shows it, the graph of its output does; and the check itself changes nothing."""
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3))
    seed, h = Borrowing(model[1].weight), torch.randn(4, 6, requires_grad=True)
    before = {name: buffer.clone() for name, buffer in seed.named_buffers()}
    apart = find_blueprint("bottleneck").build(h)
    state = torch.get_rng_state()
    others = dict(model.named_parameters())

    assert reached_by(seed, h, others) == {"1.weight"}
    assert reached_by(apart, h, others) == set()
    assert all(same_bits(buffer, before[name]) for name, buffer in seed.named_buffers())
    assert torch.equal(torch.get_rng_state(), state)
    assert all(one.training for one in seed.modules())
    assert all(one.grad is None for one in (*seed.parameters(), *model.parameters(), h))


# As in a trainer, where the compiler is imported only by a task that compiles.
WITHOUT_COMPILER = """
import sys
import torch
from torch import nn
from tolariad.trainer.torch_private import light_start
light_start.install()
from tolariad.core.calc.seeds.stages import Stage
from tolariad.trainer.seeds import *

model = nn.Sequential(nn.Linear(6, 6), nn.ReLU())
slot, x = attach(model, "0", SeedSlot("a")), torch.randn(2, 6)
model(x)
seed = find_blueprint("bottleneck").build(slot.example())
assert sanity(seed, slot.example(), model) == ""
slot.plant(seed)
for stage in (Stage.TRAINING, Stage.BLENDING, Stage.FOSSILIZED):
    slot.enter(stage)
    model(x).sum().backward()
    reached_by(seed, x.new_ones(2, 6), dict(model.named_parameters()))
drift(seed, x.new_ones(2, 6)), latency_ms(seed, x.new_ones(2, 6)), non_finite(seed)
print("torch._dynamo.eval_frame" in sys.modules)
"""


def test_a_seeds_life_does_not_import_the_compiler():
    """It would take seconds, in a boundary of milliseconds."""
    command = [sys.executable, "-c", WITHOUT_COMPILER]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)

    assert result.stdout.strip() == "False", result.stderr
