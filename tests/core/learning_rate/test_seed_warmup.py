"""The rate of a seed: a tenth of the host's base, from a hundredth of that, over epochs of its own."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tolariad.core.calc.learning_rate.curve import column, rate
from tolariad.core.calc.learning_rate.group import Group, coming, ordered, rate_of
from tolariad.core.calc.learning_rate.schedule import LRPolicy, Schedule
from tolariad.core.calc.learning_rate.seed_warmup import seed_schedule, seed_warmup_steps
from tolariad.core.calc.learning_rate.tabulated import Tabulated

HOST = Schedule(policy=LRPolicy.HOST_COSINE, base_lr=0.1, min_lr=0.001, total_steps=100, warmup_steps=10)


def test_the_rate_rises_from_the_germination_and_then_stays():
    """Update 31 is the first after step 30. Each value is one of a straight line; the host's decay does not apply."""
    seed = seed_schedule(HOST, 30, 20)
    rates = column(seed, 31, 70, {})

    assert rates[:20] == [0.1 * 0.1 * (0.01 + (1.0 - 0.01) * (n / 20)) for n in range(20)]
    assert rates[20:] == [0.1 * 0.1] * 50
    assert rate(seed, 1) == rate(seed, 31)
    assert [rate(seed, step) for step in range(31, 101)] == rates


@pytest.mark.parametrize(("warmup_steps", "first"), [(0, 0.01), (1, 0.0001), (4, 0.0001)])
def test_a_warmup_of_any_length_begins_low_and_ends_at_the_base(warmup_steps, first):
    """Without a warm-up the base rate counts from the first update on."""
    seed = seed_schedule(HOST, 7, warmup_steps)

    assert rate(seed, 8) == pytest.approx(first, rel=1e-12)
    assert rate(seed, 8 + warmup_steps) == 0.1 * 0.1


def test_a_base_rate_of_its_own_and_the_limit_of_the_host_count():
    """`seeds.lr` replaces the tenth; `max_lr` limits the seed as it limits the host."""
    own = seed_schedule(replace(HOST, max_lr=0.2), 30, 20, 0.5)
    group = Group("seed.a", own)

    assert rate_of(group, 31) == 0.005
    assert max(row[0] for row in coming([group], 31, 70)) == 0.2


def test_an_order_acts_on_the_curve_of_the_seed():
    """Scaled from its step on; under another policy the rest of the run from the germination on is the curve."""
    group = Group("seed.a", seed_schedule(HOST, 30, 20))
    scaled = ordered(group, 41, 0.002)
    decaying = ordered(group, 61, 0.01, LRPolicy.HOST_COSINE)

    assert rate_of(scaled, 41) == 0.002
    assert rate_of(scaled, 100) == pytest.approx(0.002 * 0.01 / rate_of(group, 41))
    assert rate_of(decaying, 61) == 0.01
    assert rate_of(decaying, 100) < rate_of(decaying, 80) < 0.01


def test_the_table_of_a_host_with_a_function_is_no_part_of_it():
    """Its rates are the host's, by step; the base rate counts."""
    table = Tabulated(source="/a.py:f", hash="ab", steps=100, packed="")
    host = replace(HOST, policy=LRPolicy.FUNCTION, function=table)

    assert seed_schedule(host, 3, 5) == seed_schedule(HOST, 3, 5)


@pytest.mark.parametrize(
    ("given", "steps"),
    [
        ({"steps_per_epoch": 8, "total": 400}, 80),
        # What is left is as long, or shorter: half of it, rounded up.
        ({"steps_per_epoch": 8, "total": 104}, 40),
        ({"steps_per_epoch": 1000, "total": 1000}, 488),
        ({"steps_per_epoch": 8, "total": 24}, 0),
        # The data has no length.
        ({"total": None, "epochs_ended": 3}, 80),
        ({"total": None}, 240),
        ({"total": 200, "epochs_ended": 3}, 80),
        ({"epochs": 0, "steps_per_epoch": 8, "total": 400}, 0),
    ],
)
def test_the_length_is_that_of_ten_epochs_within_the_run(given, steps):
    """A seed that germinates after step 24."""
    rest = {"epochs": 10, "step": 24, "steps_per_epoch": 0, "epochs_ended": 0, **given}

    assert seed_warmup_steps(**rest) == steps
