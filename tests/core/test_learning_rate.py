"""Rates are a function of the step alone."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from tolariad.core.learning_rate import Decay, Schedule, Warmup, rate, rates_digest, shortened_warmup

COSINE = Schedule(decay=Decay.COSINE, base_lr=0.1, min_lr=0.001, total_steps=100, warmup_steps=10)


@pytest.mark.parametrize("decay", [Decay.COSINE, Decay.LINEAR])
def test_a_decay_ends_exactly_at_the_floor_and_only_there(decay):
    """The last step has min_lr to the bit; the step before is above it."""
    schedule = replace(COSINE, decay=decay)
    assert rate(schedule, 100) == 0.001
    assert rate(schedule, 99) > 0.001


@pytest.mark.parametrize("warmup", list(Warmup))
def test_a_warm_up_rises_from_its_factor_to_the_base_rate(warmup):
    """Step 1 has base_lr times the factor, the first step after the warm-up base_lr, and every step more than the last."""
    schedule = replace(COSINE, warmup=warmup)
    rates = [rate(schedule, step) for step in range(1, 12)]
    assert rates[0] == pytest.approx(0.01)
    assert rates[10] == 0.1
    assert rates == sorted(set(rates))


def test_a_constant_rate_is_constant_after_the_warm_up():
    """Nothing decays, whatever min_lr says."""
    schedule = replace(COSINE, decay=Decay.CONSTANT)
    assert {rate(schedule, step) for step in range(11, 101)} == {0.1}


@example(Decay.LINEAR, Warmup.LINEAR, 1, 0, 0.009, 0.001)
@example(Decay.COSINE, Warmup.LINEAR, 1, 0, 0.009, 0.001)
@given(
    st.sampled_from(Decay),
    st.sampled_from(Warmup),
    st.integers(1, 50),
    st.integers(0, 60),
    st.floats(0, 1),
    st.floats(0, 0.1),
)
def test_every_step_has_a_finite_rate_between_zero_and_the_base(decay, warmup, total, warm, base, floor):
    """Also for runs of one step, warm-ups longer than the run, and floors above the base."""
    schedule = Schedule(
        decay=decay,
        base_lr=base,
        min_lr=floor,
        total_steps=total,
        warmup_steps=shortened_warmup(warm, total),
        warmup=warmup,
    )
    for step in range(total + 3):
        assert 0.0 <= rate(schedule, step) <= base
        assert math.isfinite(rate(schedule, step))


def test_the_digest_sees_every_bit_and_the_order():
    """Two sets of rates that differ in one bit, in order or in number have different digests of 64 bits."""
    near = math.nextafter(0.1, 1.0)
    sets = [(0.1, 0.2), (near, 0.2), (0.2, 0.1), (0.1,), (0.1, 0.2, 0.0)]
    digests = {rates_digest(one) for one in sets}
    assert len(digests) == len(sets)
    assert all(0 <= digest < 2**64 for digest in digests)


def test_the_digest_of_old_journals_stays_what_it_was():
    """The number is in journals, so it may never change."""
    assert rates_digest([0.001, 0.1]) == 0xD1213FD8A83DE5C3
