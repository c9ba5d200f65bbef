"""Rates are a function of the group and the step. Torch's curves are compared in tests/trainer/lr."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.core.rated import rates_at
from tolariad.core.calc.learning_rate.curve import rate, rates_digest, top_step
from tolariad.core.calc.learning_rate.group import Group, after_epoch, coming, ordered, rate_of, refusal
from tolariad.core.calc.learning_rate.residues import least_at
from tolariad.core.calc.learning_rate.schedule import (
    BY_LENGTH,
    WHOLE_RUN,
    CurveRule,
    GroupConfig,
    LRPolicy,
    PlateauRule,
    Schedule,
    Warmup,
    policy_named,
    schedule_of,
)
from tolariad.core.calc.learning_rate.tabulated import Tabulated, packed

COSINE = Schedule(policy=LRPolicy.HOST_COSINE, base_lr=0.1, min_lr=0.001, total_steps=100, warmup_steps=10)
DRAWN = [policy for policy in LRPolicy if policy is not LRPolicy.FROZEN]


def table_of(factors):
    """A function's table with these values."""
    return Tabulated(source="/somewhere/a.py:f", hash="ab", steps=len(factors), packed=packed(factors))


@st.composite
def schedules(draw):
    """Any schedule of a short run, sensible or not."""
    total = draw(st.integers(1, 50))
    return Schedule(
        policy=draw(st.sampled_from(LRPolicy)),
        base_lr=draw(st.floats(0, 1)),
        min_lr=draw(st.floats(0, 0.1)),
        start=draw(st.integers(0, 20)),
        total_steps=draw(st.sampled_from([total, None])),
        warmup_steps=draw(st.integers(0, 60)),
        warmup_factor=draw(st.floats(0.001, 1)),
        warmup=draw(st.sampled_from(Warmup)),
        step_steps=draw(st.integers(1, 9)),
        step_factor=draw(st.floats(0.01, 1)),
        decay_steps=draw(st.integers(0, 60)),
        rule=CurveRule(
            power=draw(st.floats(0.1, 5)),
            num_cycles=draw(st.integers(1, 60)),
            timescale=draw(st.sampled_from([None, 1, 7, 1000])),
            pct_start=draw(st.sampled_from([0.0, 0.02, 0.3, 0.98, 1.0])),
            div_factor=draw(st.floats(1, 100)),
            final_div_factor=draw(st.floats(1, 1e5)),
        ),
        function=draw(st.sampled_from([None, table_of([0.0, 0.5, 1.0]), table_of([1.0] * total)])),
    )


@pytest.mark.parametrize(
    "policy",
    [LRPolicy.HOST_COSINE, LRPolicy.LINEAR, LRPolicy.WSD, LRPolicy.POLYNOMIAL, LRPolicy.COSINE_RESTARTS],
)
def test_a_decay_ends_exactly_at_the_floor_and_only_there(policy):
    """The last step has min_lr to the bit; the step before is above it; beyond the end nothing rises again."""
    schedule = replace(COSINE, policy=policy, decay_steps=20, rule=CurveRule(power=2.0, num_cycles=7))
    assert rate(schedule, 100) == 0.001
    assert rate(schedule, 99) > 0.001
    assert {rate(schedule, step) for step in (101, 150, 10_000)} == {0.001}


@pytest.mark.parametrize("warmup", list(Warmup))
@pytest.mark.parametrize("policy", [policy for policy in DRAWN if policy not in WHOLE_RUN])
def test_a_warm_up_rises_from_its_factor_to_the_base_rate(policy, warmup):
    """Step 1 has base_lr times the factor, which min_lr does not bound. Each step has more, and base_lr follows the
    warm-up.
    """
    schedule = replace(COSINE, policy=policy, warmup=warmup, min_lr=0.05, step_steps=30)
    rates = [rate(schedule, step) for step in range(1, 12)]
    assert rates[0] == pytest.approx(0.01)
    assert rates[10] == 0.1
    assert rates == sorted(set(rates))


@pytest.mark.parametrize("policy", [LRPolicy.CONSTANT, LRPolicy.SEED_WARMUP, LRPolicy.MORPHO_ADAPTIVE])
def test_a_constant_rate_is_constant_after_the_warm_up(policy):
    """Nothing decays, whatever min_lr says."""
    schedule = replace(COSINE, policy=policy)
    assert {rate(schedule, step) for step in range(11, 101)} == {0.1}


def test_a_frozen_group_has_rate_zero():
    """From the first step on, and through any warm-up."""
    assert {rate(replace(COSINE, policy=LRPolicy.FROZEN), step) for step in range(1, 120)} == {0.0}


def test_a_run_of_unknown_length_keeps_its_base_rate():
    """There is no last step to decay to."""
    for policy in BY_LENGTH - {LRPolicy.FUNCTION}:
        schedule = replace(COSINE, policy=policy, total_steps=None)
        assert rate(schedule, 10**9) == 0.1


def test_restarts_begin_at_the_base_rate_in_equal_parts_of_the_run():
    """99 steps after the first, in 3 parts; no rounding puts a restart beside its step, whatever the parts."""
    schedule = replace(COSINE, policy=LRPolicy.COSINE_RESTARTS, warmup_steps=0, rule=CurveRule(num_cycles=3))
    assert [step for step in range(1, 101) if rate(schedule, step) == 0.1] == [1, 34, 67]
    many = replace(schedule, rule=CurveRule(num_cycles=49), total_steps=49 * 49 + 1)
    assert [step for step in range(1, 49 * 49 + 2) if rate(many, step) == 0.1] == list(range(1, 49 * 49 + 1, 49))


def test_onecycle_rises_to_the_base_rate_and_falls_far_below_its_beginning():
    """By its own factors, which min_lr does not bound; a warm-up that is configured does not come before it."""
    config = GroupConfig("g", LRPolicy.ONECYCLE, 0.1, warmup_epochs=5, min_lr=0.05)
    rates = [rate(schedule_of(config, steps_per_epoch=10, total_steps=100), step) for step in range(1, 102)]
    assert rates[0] == pytest.approx(0.1 / 25, rel=1e-15)
    assert rates.index(max(rates)) == 29
    assert max(rates) == 0.1
    assert rates[99] == rates[100] == 0.1 / 25 / 1e4


def test_a_function_gives_factors_of_the_base_rate_over_the_whole_run():
    """The first update has the first value; after the last step the last one stays. Only max_lr bounds it."""
    schedule = replace(COSINE, policy=LRPolicy.FUNCTION, function=table_of([0.0, 0.3, 7.0]), min_lr=0.01, max_lr=0.5)
    group = Group("g", replace(schedule, warmup_steps=0, total_steps=3))
    assert [rate_of(group, step) for step in (1, 2, 3, 4)] == [0.0, 0.1 * 0.3, 0.5, 0.5]
    assert group.policy_name == "a.py:f"


def test_an_order_may_put_a_function_in_place_and_another_order_takes_it_away():
    """The table is the order's; the configured function comes back with nothing of it."""
    group = Group("g", replace(COSINE, policy=LRPolicy.FUNCTION, function=table_of([1.0, 2.0]), warmup_steps=0))
    changed = ordered(group, 2, 0.4, LRPolicy.FUNCTION, table_of([1.0, 0.5, 0.25]))
    assert [rate_of(changed, step) for step in (2, 3, 9)] == [0.4, 0.2, 0.2]
    assert changed.schedule == group.schedule
    assert ordered(changed, 3, 0.1, LRPolicy.CONSTANT).function is None


def test_warmup_stable_decay_is_stable_before_its_decay():
    """Base rate from the warm-up's end to the decay's beginning, then a straight line."""
    schedule = replace(COSINE, policy=LRPolicy.WSD, decay_steps=20, min_lr=0.0)
    assert {rate(schedule, step) for step in range(11, 81)} == {0.1}
    assert rate(schedule, 90) == pytest.approx(0.05)


@example(Schedule(policy=LRPolicy.LINEAR, base_lr=0.009, min_lr=0.001, total_steps=1))
@example(Schedule(policy=LRPolicy.HOST_COSINE, base_lr=0.009, min_lr=0.001, total_steps=1))
@given(schedules())
def test_every_step_has_a_finite_rate_between_zero_and_the_base(schedule):
    """Also for runs of one step, warm-ups longer than the run, and floors above the base."""
    for step in range(75):
        value = rate(schedule, step)
        assert 0.0 <= value <= schedule.base_lr
        assert math.isfinite(value)


# 0.001 + 0.008 is the float above 0.009: of a column too the base is never passed.
@example([Schedule(policy=LRPolicy.LINEAR, base_lr=0.009, min_lr=0.001, total_steps=50)] * 3, 0, 40, 0.5)
@given(st.lists(schedules(), min_size=1, max_size=4), st.integers(0, 60), st.integers(1, 40), st.floats(1e-9, 1))
def test_many_steps_at_once_have_the_bits_of_each_alone(drawn, first, count, value):
    """Sharing between steps and groups changes no rate, orders and plateaus included."""
    groups = [Group(str(number), schedule) for number, schedule in enumerate(drawn)]
    groups[0] = ordered(groups[0], 7, value)
    groups[-1] = after_epoch(groups[-1], 70, 1.0)
    assert list(coming(groups, first, count)) == [rates_at(groups, step) for step in range(first, first + count)]


def test_a_plateau_begins_to_count_when_the_warm_up_is_over():
    """Epochs of a rate that still rises say nothing about a rate that is too high."""
    schedule = replace(COSINE, policy=LRPolicy.MORPHO_ADAPTIVE, plateau=PlateauRule(patience=0))
    group = Group("g", schedule)
    for step in (2, 4, 6, 8):
        group = after_epoch(group, step, 1.0)
    assert group.plateau is None
    for step in (10, 12):
        group = after_epoch(group, step, 1.0)
    assert [rate_of(group, step) for step in (12, 13, 90)] == pytest.approx([0.01] * 3)


@pytest.mark.parametrize("warmup_epochs", [0, 1, 3, 4, 11])
@pytest.mark.parametrize("epochs", [1, 2, 3, 4, 5, 11])
def test_the_first_epoch_that_counts_does_not_depend_on_its_steps(epochs, warmup_epochs):
    """Also if the warm-up was cut to half of a run whose epochs are odd in number and have one step."""
    config = GroupConfig("g", LRPolicy.MORPHO_ADAPTIVE, 0.1, warmup_epochs=warmup_epochs)
    counted = set()
    for steps in (1, 2, 3, 10):
        group = Group("g", schedule_of(config, steps_per_epoch=steps, total_steps=epochs * steps))
        ends = [epoch for epoch in range(1, epochs + 1) if after_epoch(group, epoch * steps, 1.0).plateau is not None]
        counted.add(ends[0])
        assert rate_of(group, epochs * steps) == 0.1
    assert len(counted) == 1


@given(schedules(), st.integers(1, 60))
@example(
    replace(COSINE, policy=LRPolicy.WSD, warmup_steps=1, warmup_factor=1.0, decay_steps=1, total_steps=2, min_lr=0.0), 1
)
@example(
    replace(COSINE, policy=LRPolicy.WSD, warmup_steps=15, warmup_factor=0.5, decay_steps=1, total_steps=16, min_lr=0.0),
    1,
)
def test_the_highest_step_to_come_is_known_without_looking_at_every_step(schedule, step):
    """No later step has a higher rate, also of restarts after less than two steps."""
    if schedule.policy in WHOLE_RUN:
        schedule = replace(schedule, warmup_steps=0)
    top = top_step(schedule, step)
    assert top >= step
    assert rate(schedule, top) == max(rate(schedule, one) for one in range(step, step + 120))


@given(st.integers(0, 200), st.integers(1, 100), st.integers(0, 300), st.integers(1, 300))
def test_the_least_remainder_is_found_without_looking_at_every_number(factor, modulus, start, count):
    """And at its first number; a range of a billion takes as long as one of ten."""
    numbers = range(start, start + count)
    assert least_at(factor, modulus, numbers) == min(numbers, key=lambda n: (factor * n % modulus, n))
    assert least_at(1_000_003, 10**9 + 7, range(1, 10**9 + 7)) * 1_000_003 % (10**9 + 7) == 1


# -- orders --


def test_an_order_whose_curve_would_rise_far_above_it_is_refused():
    """At the end of a cycle the curve is low; scaled to a usual rate there, a restart would be far above any rate."""
    group = Group("g", replace(COSINE, warmup_steps=0, min_lr=0.0, rule=CurveRule(num_cycles=3)))
    why = refusal(group, 33, 0.05, LRPolicy.COSINE_RESTARTS, 10.0)
    assert "rises to" in why
    assert "at step 34" in why
    assert refusal(group, 34, 0.05, LRPolicy.COSINE_RESTARTS, 10.0) is None
    assert refusal(group, 33, 0.05, LRPolicy.COSINE_RESTARTS, 0.0) is None
    assert "rises to" in refusal(group, 1, 0.1, LRPolicy.FUNCTION, 10.0, function=table_of([0.01, 0.0, 1.0]))
    assert refusal(group, 1, 0.1, LRPolicy.FUNCTION, 10.0, function=table_of([1.0, 0.0, 1.0])) is None
    assert "step 30" in refusal(group, 1, 0.1, LRPolicy.ONECYCLE, 10.0)


@given(schedules(), st.integers(1, 60), st.floats(1e-9, 1))
def test_an_ordered_rate_is_exact_at_its_step_and_scales_the_rest(schedule, step, value):
    """The rate is the very float that was ordered; later ones keep their ratio to the curve."""
    group = ordered(Group("g", schedule), step, value)
    before = Group("g", schedule)
    at = rate_of(before, step)
    assert rate_of(group, step) == value
    for later in range(step, step + 20):
        share = rate_of(before, later) / at if at > 0 else 1.0
        assert rate_of(group, later) == pytest.approx(value * share, rel=1e-12)


def test_an_order_with_a_policy_takes_the_curve_of_that_policy():
    """Constant holds the value, frozen stops the group, linear draws its line through the value to the run's end."""
    group = Group("g", COSINE)
    held = ordered(group, 50, 0.02, LRPolicy.CONSTANT)
    assert {rate_of(held, step) for step in range(50, 120)} == {0.02}
    frozen = ordered(held, 60, 0.0, LRPolicy.FROZEN)
    assert {rate_of(frozen, step) for step in range(60, 120)} == {0.0}
    line = ordered(frozen, 70, 0.02, LRPolicy.LINEAR)
    assert rate_of(line, 70) == 0.02
    assert 0.0 < rate_of(line, 99) < rate_of(line, 98) < 0.02


def test_no_rate_passes_max_lr():
    """An order in a warm-up scales what is still to rise, but not past the bound."""
    group = ordered(Group("g", replace(COSINE, max_lr=0.1)), 1, 0.05)
    assert rate_of(group, 1) == 0.05
    assert rate_of(group, 11) == 0.1


# -- configuration --


def test_epochs_become_steps():
    """Lengths are multiplied, a warm-up that does not fit is halved, and a group that begins later counts from its
    beginning.
    """
    config = GroupConfig("g", policy_named("cosine"), 0.1, warmup_epochs=2)
    schedule = schedule_of(config, steps_per_epoch=10, total_steps=100)
    assert (schedule.warmup_steps, schedule.total_steps) == (20, 100)
    assert schedule_of(replace(config, warmup_epochs=10), steps_per_epoch=10, total_steps=100).warmup_steps == 50
    later = schedule_of(config, steps_per_epoch=10, total_steps=100, start=40)
    assert rate(later, 41) == pytest.approx(0.01)
    assert rate(later, 100) == 1e-6


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("base_lr", -1.0),
        ("base_lr", math.nan),
        ("base_lr", math.inf),
        ("max_lr", 0.01),
        ("warmup_factor", 0.0),
        ("warmup_type", "square"),
        ("step_epochs", 0),
        ("decay_fraction", 2.0),
        ("plateau", PlateauRule(factor=1.0)),
    ],
)
def test_a_configuration_that_makes_no_schedule_is_refused_by_name(field, value):
    """The message names group and field."""
    config = replace(GroupConfig("head", LRPolicy.WSD, 0.1), **{field: value})
    with pytest.raises(ValueError, match=f"group head: {field}="):
        schedule_of(config, steps_per_epoch=1, total_steps=10)


def test_a_warm_up_in_steps_needs_no_length_of_an_epoch():
    """It takes the place of epochs, 0 too; a run that is shorter shortens it to half; a rise of its own has none."""
    config = GroupConfig("a", LRPolicy.CONSTANT, 0.1, warmup_epochs=5, warmup_steps=30)

    def warmup(config, total_steps=None):
        return schedule_of(config, steps_per_epoch=7, total_steps=total_steps).warmup_steps

    assert warmup(config) == 30
    assert warmup(replace(config, warmup_steps=0)) == 0
    assert warmup(replace(config, warmup_steps=None)) == 35
    assert warmup(config, total_steps=20) == 10
    assert warmup(replace(config, policy=LRPolicy.ONECYCLE)) == 0
    assert (config.warms_up_by_epochs, replace(config, warmup_steps=None).warms_up_by_epochs) == (False, True)


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
