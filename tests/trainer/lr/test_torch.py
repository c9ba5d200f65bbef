"""The policies compared with torch's schedulers, which have the same shape but other arithmetic."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim import lr_scheduler

from tolariad.core.calc.learning_rate.curve import rate
from tolariad.core.calc.learning_rate.group import Plateau, observed
from tolariad.core.calc.learning_rate.schedule import CurveRule, LRPolicy, PlateauRule, Schedule, Warmup
from tolariad.core.calc.learning_rate.tabulated import Tabulated, packed

STEPS = 100


def optimizer_at(rate):
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=rate)


def torch_rates(scheduler):
    """Return the rates of the first updates with one of torch's schedulers."""
    rates = []
    for _ in range(STEPS):
        rates.append(scheduler.optimizer.param_groups[0]["lr"])
        scheduler.optimizer.step()
        scheduler.step()
    return rates


def schedule(policy, **more):
    return Schedule(policy=policy, base_lr=0.1, total_steps=STEPS, **more)


@pytest.mark.parametrize(
    ("ours", "make"),
    [
        (
            schedule(LRPolicy.HOST_COSINE, min_lr=0.001),
            lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=STEPS - 1, eta_min=0.001),
        ),
        (
            schedule(LRPolicy.LINEAR, min_lr=0.001),
            lambda o: lr_scheduler.LinearLR(o, start_factor=1.0, end_factor=0.01, total_iters=STEPS - 1),
        ),
        (
            schedule(LRPolicy.STEP, step_steps=30, step_factor=0.3),
            lambda o: lr_scheduler.StepLR(o, step_size=30, gamma=0.3),
        ),
        (
            schedule(LRPolicy.SEED_WARMUP, warmup_steps=10),
            lambda o: lr_scheduler.LinearLR(o, start_factor=0.1, end_factor=1.0, total_iters=10),
        ),
        (
            schedule(LRPolicy.SEED_WARMUP, warmup_steps=STEPS, warmup=Warmup.EXPONENTIAL, warmup_factor=0.01),
            lambda o: lr_scheduler.LambdaLR(o, lambda step: 0.01 ** (1 - step / STEPS)),
        ),
    ],
    ids=["cosine", "linear", "step", "linear warm-up", "exponential warm-up"],
)
def test_the_policies_draw_torchs_curves(ours, make):
    """Torch computes each rate from the one before, with a rounding each time; ours is a closed form."""
    expected = torch_rates(make(optimizer_at(0.1)))
    assert [rate(ours, step) for step in range(1, STEPS + 1)] == pytest.approx(expected, rel=1e-13)


def transformers_inverse_sqrt(step, warm, scale):
    """The factor of `get_inverse_sqrt_schedule`, from its documentation: from warm-up's end on, one over a root."""
    return step / warm if step < warm else 1.0 / math.sqrt((step + scale - warm) / scale)


def transformers_hard_restarts(step, warm, steps, cycles):
    """The factor of `get_cosine_with_hard_restarts_schedule_with_warmup`, from its documentation."""
    done = (step - warm) / (steps - warm)
    return 0.0 if done >= 1.0 else max(0.0, 0.5 * (1.0 + math.cos(math.pi * (cycles * done % 1.0))))


def own_factor(step, total_steps):
    """A user's function: stairs and a ramp."""
    return min((step + 1) / 7, 0.7 ** (step // (total_steps // 5)))


@pytest.mark.parametrize(
    ("ours", "make"),
    [
        (
            schedule(LRPolicy.ONECYCLE),
            lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.1, total_steps=STEPS, cycle_momentum=False),
        ),
        (
            schedule(LRPolicy.ONECYCLE, rule=CurveRule(pct_start=0.217, div_factor=7.0, final_div_factor=130.0)),
            lambda o: lr_scheduler.OneCycleLR(
                o, 0.1, total_steps=STEPS, pct_start=0.217, div_factor=7.0, final_div_factor=130.0, cycle_momentum=False
            ),
        ),
        (
            schedule(LRPolicy.STEP, step_steps=30, step_factor=0.3),
            lambda o: lr_scheduler.LambdaLR(o, lambda step: 0.3 ** (step // 30)),
        ),
        (
            schedule(LRPolicy.POLYNOMIAL, rule=CurveRule(power=1.7)),
            lambda o: lr_scheduler.LambdaLR(o, lambda step: (1.0 - step / (STEPS - 1)) ** 1.7),
        ),
        (
            schedule(LRPolicy.INVERSE_SQRT),
            lambda o: lr_scheduler.LambdaLR(o, lambda step: transformers_inverse_sqrt(step, 0, 10_000)),
        ),
        (
            schedule(
                LRPolicy.FUNCTION,
                function=Tabulated("a.py:f", "", STEPS, packed([own_factor(n, STEPS) for n in range(STEPS)])),
            ),
            lambda o: lr_scheduler.LambdaLR(o, lambda step: own_factor(step, STEPS)),
        ),
    ],
    ids=["one-cycle", "one-cycle with factors", "step", "polynomial", "inverse square root", "function"],
)
def test_policies_with_torchs_own_formula_have_its_bits(ours, make):
    """The scheduler of torch computes each of these by a closed form too, so every rate is the same float."""
    assert [rate(ours, step) for step in range(1, STEPS + 1)] == torch_rates(make(optimizer_at(0.1)))


@pytest.mark.parametrize(
    ("ours", "make"),
    [
        (
            schedule(LRPolicy.POLYNOMIAL, rule=CurveRule(power=2.0)),
            lambda o: lr_scheduler.PolynomialLR(o, total_iters=STEPS - 1, power=2.0),
        ),
        (
            schedule(LRPolicy.COSINE_RESTARTS, rule=CurveRule(num_cycles=3), min_lr=0.001),
            lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, T_0=(STEPS - 1) // 3, eta_min=0.001),
        ),
        (
            schedule(LRPolicy.COSINE_RESTARTS, rule=CurveRule(num_cycles=5), warmup_steps=9),
            lambda o: lr_scheduler.LambdaLR(o, lambda step: transformers_hard_restarts(step, 9, STEPS - 1, 5)),
        ),
        (
            schedule(LRPolicy.INVERSE_SQRT, warmup_steps=9),
            lambda o: lr_scheduler.LambdaLR(o, lambda step: transformers_inverse_sqrt(step, 9, 9)),
        ),
        (
            schedule(LRPolicy.INVERSE_SQRT, warmup_steps=9, rule=CurveRule(timescale=50)),
            lambda o: lr_scheduler.LambdaLR(o, lambda step: transformers_inverse_sqrt(step, 9, 50)),
        ),
    ],
    ids=["polynomial", "restarts of torch", "restarts of transformers", "inverse square root", "its timescale"],
)
def test_policies_with_another_arithmetic_differ_in_the_last_bits_only(ours, make):
    """After the warm-up. The last step of a decay is ours: transformers' curve would reach its end one step later."""
    expected = torch_rates(make(optimizer_at(0.1)))
    first, last = ours.warmup_steps, STEPS - 1
    found = [rate(ours, step) for step in range(1, STEPS + 1)]
    assert found[first:last] == pytest.approx(expected[first:last], rel=1e-12, abs=1e-13)


@given(
    st.lists(st.one_of(st.floats(0, 2), st.floats(), st.sampled_from([0.5, 0.49995, 0.4999])), max_size=60),
    st.integers(0, 4),
    st.integers(0, 3),
    st.sampled_from([0.1, 0.5, 0.9]),
    st.sampled_from([0.0, 1e-4, 0.03]),
)
def test_a_plateau_lowers_the_rate_exactly_as_torch_does(metrics, patience, cooldown, factor, least):
    """Every epoch has the same float for any metrics, including infinite and NaN ones."""
    optimizer = optimizer_at(0.1)
    torchs = lr_scheduler.ReduceLROnPlateau(
        optimizer, factor=factor, patience=patience, cooldown=cooldown, min_lr=least
    )
    rule, ours = PlateauRule(factor=factor, patience=patience, cooldown=cooldown), Plateau(0.1)
    for metric in metrics:
        torchs.step(metric)
        ours = observed(ours, rule, least, metric)
        assert ours.rate == optimizer.param_groups[0]["lr"]
        assert (ours.bad, ours.cooling) == (torchs.num_bad_epochs, torchs.cooldown_counter)
