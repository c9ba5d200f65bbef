"""The policies compared with torch's schedulers, which have the same shape but other arithmetic."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim import lr_scheduler

from tolariad.core.learning_rate.curve import rate
from tolariad.core.learning_rate.group import Plateau, observed
from tolariad.core.learning_rate.schedule import LRPolicy, PlateauRule, Schedule, Warmup

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
