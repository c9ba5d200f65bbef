"""Breaker, conservative mode and budgets: rules over values, with time as an argument."""

from __future__ import annotations

from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tolariad.core.calc.health.breaker import (
    Breaker,
    BreakerState,
    breaker_rule,
    breaker_state,
    failed,
    may_leave_conservative,
    reason_for_conservative,
    succeeded,
)
from tolariad.core.calc.health.budgets import BUDGETS, MEMORY_SHARES
from tolariad.core.calc.settings.model import Breaker as Rule
from tolariad.core.calc.settings.model import Settings
from tolariad.core.calc.settings.optimization import LearningRate

RULE = Rule()
CLOSED, OPEN, HALF_OPEN = BreakerState


def opened(at: float = 0.0, rule: Rule = RULE) -> Breaker:
    return reduce(lambda breaker, _: failed(breaker, rule, at), range(rule.failures), Breaker())


def test_three_failures_in_a_row_open_it():
    """Two do not, and a success in between starts the count again."""
    two = failed(failed(Breaker(), RULE, 1.0), RULE, 2.0)

    assert breaker_state(two, RULE, 2.0) is CLOSED
    assert breaker_state(failed(two, RULE, 3.0), RULE, 3.0) is OPEN
    assert breaker_state(failed(succeeded(two, RULE, 2.5), RULE, 3.0), RULE, 3.0) is CLOSED


def test_it_is_half_open_after_its_wait_and_not_before():
    """30 seconds after it opened, to the float."""
    breaker = opened(at=100.0)

    assert breaker_state(breaker, RULE, 129.999) is OPEN
    assert breaker_state(breaker, RULE, 130.0) is HALF_OPEN


def test_a_failed_probe_opens_it_for_a_whole_wait_and_a_good_one_closes_it():
    """The wait begins again at the failure."""
    again = failed(opened(), RULE, 40.0)

    assert breaker_state(again, RULE, 69.0) is OPEN
    assert breaker_state(again, RULE, 70.0) is HALF_OPEN
    assert succeeded(opened(), RULE, 40.0) == Breaker()


def test_it_closes_with_as_many_successes_as_the_rule_asks_for():
    """Two probes: one success leaves it half-open."""
    rule = Rule(failures=1, reset_s=10.0, probes=2)
    one = succeeded(opened(rule=rule), rule, 11.0)

    assert breaker_state(one, rule, 12.0) is HALF_OPEN
    assert breaker_state(succeeded(one, rule, 12.0), rule, 12.0) is CLOSED


def test_what_began_before_it_opened_changes_nothing_when_it_ends():
    """A late success does not close an open breaker, a late failure does not lengthen its wait."""
    breaker = opened(at=0.0)

    assert succeeded(breaker, RULE, 5.0) == breaker
    assert failed(breaker, RULE, 5.0) == breaker


def test_a_clock_that_began_again_does_not_hold_it_open():
    """After a reboot the monotonic clock is small again; the wait counts as over."""
    assert breaker_state(opened(at=1e6), RULE, 12.0) is HALF_OPEN


@given(st.lists(st.tuples(st.sampled_from(["failed", "succeeded"]), st.floats(0, 40)), max_size=60))
def test_a_breaker_never_closes_without_a_success_and_never_stays_shut_out(moves):
    """Over any history: from open it leads to closed only by success, and after one wait it is not open."""
    breaker, now = Breaker(), 0.0
    for move, wait in moves:
        now += wait
        before = breaker_state(breaker, RULE, now)
        breaker = {"failed": failed, "succeeded": succeeded}[move](breaker, RULE, now)
        after = breaker_state(breaker, RULE, now)
        assert after is before or (before, move, after) in {
            (CLOSED, "failed", OPEN),
            (HALF_OPEN, "failed", OPEN),
            (HALF_OPEN, "succeeded", CLOSED),
        }
    assert breaker_state(breaker, RULE, now + RULE.reset_s) is not OPEN


def test_rules_are_overridden_by_name():
    """`breakers` first, then the threshold of the rate guard, then the default."""
    settings = Settings(breakers={"bus": Rule(failures=9)}, learning_rate=LearningRate(circuit_breaker_threshold=5))

    assert breaker_rule(settings, "bus").failures == 9
    assert breaker_rule(settings, "lr").failures == 5
    assert breaker_rule(settings, "other") == Rule()


@pytest.mark.parametrize(
    ("strain", "word"),
    [
        ({"open_breakers": ("lr", "bus")}, "open breaker: lr, bus"),
        ({"rate_violations": 3}, "3 learning-rate violations"),
        ({"slow_boundaries": 3}, "3 epoch boundaries in a row over their budget"),
        ({"rate_violations": 2, "slow_boundaries": 2}, None),
        ({}, None),
    ],
)
def test_each_reason_for_conservative_mode_is_enough_by_itself(strain, word):
    """And is told in words; two violations and two slow boundaries are not enough together."""
    reason = reason_for_conservative(**strain)

    assert (reason is None) if word is None else (reason is not None and word in reason)


def test_conservative_mode_is_left_after_three_healthy_epochs_and_five_minutes():
    """Both, and at a clock that began again the minutes count as over."""
    assert may_leave_conservative(healthy_epochs=3, since=10.0, now=310.0)
    assert not may_leave_conservative(healthy_epochs=2, since=10.0, now=1000.0)
    assert not may_leave_conservative(healthy_epochs=9, since=10.0, now=309.9)
    assert may_leave_conservative(healthy_epochs=3, since=1e6, now=5.0)


def test_a_budget_that_can_be_configured_is_the_configurations_default():
    """The table and the settings never disagree about a number."""
    named = {budget.setting: budget.limit for budget in BUDGETS.values() if budget.setting}
    values = {}
    for key in named:
        value = Settings()
        for part in key.split("."):
            value = getattr(value, part)
        values[key] = value

    assert len(named) == 8
    assert values == named


def test_the_parts_of_a_budget_fill_it():
    """Epoch boundary, checkpoint, fast and full tier: in the parts' units, to the last digit."""
    wholes = {budget.part_of for budget in BUDGETS.values() if budget.part_of}

    assert wholes == {"epoch_boundary", "checkpoint", "fast_rollback", "full_rollback"}
    for whole in wholes:
        parts = [budget for budget in BUDGETS.values() if budget.part_of == whole]
        assert sum(part.limit for part in parts) == pytest.approx(BUDGETS[whole].limit, rel=1e-12)
        assert {part.unit for part in parts} == {BUDGETS[whole].unit}
        assert {part.kind for part in parts} == {BUDGETS[whole].kind}


def test_every_budget_says_what_it_is():
    """Names are the keys; only the paths that save a run are safety budgets; memory's shares are in the table too."""
    assert all(budget.name == name and budget.limit > 0 and budget.source for name, budget in BUDGETS.items())
    safety = {name.split("_", maxsplit=1)[0] for name, budget in BUDGETS.items() if budget.kind == "safety"}
    assert safety == {"fast", "full", "rollback", "prune", "emergency"}
    assert {one: BUDGETS[f"memory_{one}"].limit / 100 for one in MEMORY_SHARES} == pytest.approx(dict(MEMORY_SHARES))
