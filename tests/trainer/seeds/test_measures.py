"""Measurements for the gates: right by hand, seen through the compiler, and without a trace."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
import torch
from torch import nn

from tests.house.tree import ROOT
from tests.trainer.seeds.hosts import HOSTS, Shifting, backward, pair
from tolariad.core.seeds.stages import Stage
from tolariad.trainer.checkpoints.tensors import same_bits
from tolariad.trainer.seeds import (
    SeedSlot,
    attach,
    drift,
    find_blueprint,
    gradient_norm,
    inputs_of,
    isolation_violations,
    latency_ms,
    non_finite,
    slots_of,
)


def test_gradient_norm_is_that_of_all_parameters():
    """Against the norm by hand; 0 before the first backward pass."""
    seed = Shifting()
    assert gradient_norm(seed).item() == 0.0
    seed.scale.grad, seed.shift.grad = torch.tensor(3.0), torch.tensor(-4.0)

    assert gradient_norm(seed).item() == 5.0


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


@pytest.mark.parametrize("compiled", [False, True])
def test_inputs_of_slots_are_collected(compiled):
    """Attached or a module, also if the model is compiled; and no hook stays."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 6), SeedSlot("one"), nn.ReLU(), nn.Linear(6, 3))
    attach(model, "2", SeedSlot("two"))
    call = torch.compile(model, backend="eager") if compiled else model
    x = torch.randn(5, 6)
    call(x)
    with inputs_of(model) as seen:
        call(x)
    kept = dict(seen)
    call(x + 1)

    assert set(seen) == {"one", "two"}
    assert torch.equal(seen["one"], model[0](x))
    assert torch.equal(seen["two"], model[0](x).relu())
    assert not any(one.requires_grad for one in seen.values())
    assert all(seen[name] is kept[name] for name in seen), "nothing is collected after the block"
    assert not any(slot._forward_pre_hooks for slot in slots_of(model).values())


@pytest.mark.parametrize("drop", [0.0, 0.5])
@pytest.mark.parametrize("kind", list(HOSTS))
def test_a_seed_in_training_is_isolated(kind, drop):
    """No gradient of the host differs; and the check itself changes nothing."""
    _, model, slot, x = pair(kind, Stage.TRAINING, Shifting(drop))
    backward(model, x)
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    buffers = [buffer.clone() for buffer in model.buffers()]
    state = torch.get_rng_state()

    assert isolation_violations(model, lambda: model(x).square().sum()) == 0
    assert all(same_bits(one, parameter.grad) for one, parameter in zip(gradients, model.parameters(), strict=True))
    assert all(same_bits(one, buffer) for one, buffer in zip(buffers, model.buffers(), strict=True))
    assert torch.equal(torch.get_rng_state(), state)
    assert slot.stage is Stage.TRAINING
    assert model.training


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
    """The check can fail."""
    _, model, slot, x = pair("mlp", Stage.TRAINING, Shifting(0.5))
    LEAKS[kind](model, slot)

    assert isolation_violations(model, lambda: model(x).square().sum()) > 0


# As in a trainer, where the compiler is imported only by a task that compiles.
WITHOUT_COMPILER = """
import sys
import torch
from torch import nn
from tolariad.trainer.process import light_start
light_start.install()
from tolariad.core.seeds.stages import Stage
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
    isolation_violations(model, lambda: model(x).sum())
with inputs_of(model) as seen:
    model(x)
drift(seed, seen["a"]), latency_ms(seed, seen["a"]), gradient_norm(seed), non_finite(seed)
print("torch._dynamo.eval_frame" in sys.modules)
"""


def test_a_seeds_life_does_not_import_the_compiler():
    """It would take seconds, in a boundary of milliseconds."""
    command = [sys.executable, "-c", WITHOUT_COMPILER]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT)

    assert result.stdout.strip() == "False", result.stderr


def test_nothing_is_run_if_no_seed_is_in_training():
    """A check that costs two passes is not made for nothing."""
    _, model, _, _ = pair("mlp", Stage.BLENDING)

    def fail() -> torch.Tensor:
        raise AssertionError

    assert isolation_violations(model, fail) == 0
