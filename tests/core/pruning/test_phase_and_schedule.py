"""The phase of pruning and its schedule."""

from __future__ import annotations

from fractions import Fraction

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tolariad.core.calc.health.breaker import BreakerState
from tolariad.core.calc.pruning.phase import is_cycle_due, phase_at
from tolariad.core.calc.pruning.plan import plan_of
from tolariad.core.calc.pruning.schedule import budget_at, cap_at, parameters_allowed
from tolariad.core.calc.pruning.verdict import PruningDecision, accuracy_margin, accuracy_trip
from tolariad.core.calc.settings.model import Settings
from tolariad.core.calc.settings.pruning import PruneSafety
from tolariad.core.pruning import ProgressivePruningSchedule, PruningPhase, StructuredPruningPhaseManager
from tolariad.leyline import PruningDecision as DecisionMessage
from tolariad.leyline import PruningPhase as PhaseMessage

V, A, D = PruningPhase.VALIDATION_ONLY, PruningPhase.ACTIVE_PRUNING, PruningPhase.DISABLED
DEFAULT = plan_of(Settings())
EPOCHS = st.integers(0, 200)
INTERVALS = st.integers(2, 5)


@pytest.mark.parametrize(
    ("epoch", "phase"), [(0, V), (1, V), (30, V), (31, A), (99, A), (120, A), (121, D), (10_000, D)]
)
def test_the_phase_follows_the_epoch(epoch, phase):
    """Validation only to epoch 30, active to 120, disabled from 121."""
    assert phase_at(DEFAULT, epoch) is phase


@given(EPOCHS, st.sampled_from(BreakerState), st.none() | st.sampled_from(PruningPhase))
def test_breaker_and_order_only_hold_back(epoch, breaker, override):
    """An open breaker disables; an order never prunes in an epoch in which the schedule does not."""
    scheduled = phase_at(DEFAULT, epoch)
    found = phase_at(DEFAULT, epoch, breaker, override)

    assert found is phase_at(DEFAULT, epoch, breaker, override)
    if breaker is BreakerState.OPEN or override is D:
        assert found is D
    elif override is V:
        assert found is (D if scheduled is D else V)
    else:
        assert found is scheduled


@given(EPOCHS, st.integers(0, 200))
def test_the_phase_moves_forward_only(epoch, later):
    """Without an order and with a closed breaker."""
    assert phase_at(DEFAULT, epoch) <= phase_at(DEFAULT, epoch + later)


@given(INTERVALS)
def test_a_cycle_is_due_once_an_interval(interval):
    """After every epoch while it only analyses, then at multiples of the interval, and never from epoch 121."""
    plan = msgspec.structs.replace(DEFAULT, interval=interval)
    due = [epoch for epoch in range(200) if is_cycle_due(plan, epoch, phase_at(plan, epoch))]

    assert due == [*range(1, 31), *(epoch for epoch in range(31, 121) if epoch % interval == 0)]


def allowed_at(plan, epoch, total, pruned):
    return parameters_allowed(budget_at(plan, epoch), cap_at(plan, epoch), total, pruned)


def test_a_run_whose_model_may_not_change_never_prunes():
    """`enable_morphogenetic: false`."""
    plan = msgspec.structs.replace(DEFAULT, morphogenesis=False)

    assert {phase_at(plan, epoch) for epoch in range(200)} == {D}


def test_the_manager_goes_back_with_a_checkpoint():
    """After a reset its phase is that of the checkpoint's epoch; breaker and order act at once."""
    manager = StructuredPruningPhaseManager(Settings())
    assert manager.current_phase is V
    assert manager.get_current_phase(90) is A
    assert manager.is_pruning_epoch(90)
    assert not manager.is_pruning_epoch(91)
    assert manager.current_phase is A

    manager.reset_to_checkpoint(30)
    assert manager.current_phase is V

    manager.breaker = BreakerState.OPEN
    assert manager.current_phase is D
    assert not manager.is_pruning_epoch(90)
    manager.breaker = BreakerState.HALF_OPEN
    manager.override = V
    assert manager.get_current_phase(90) is V


@pytest.mark.parametrize(
    ("epoch", "budget"),
    [(0, 0.0), (30, 0.0), (31, 0.01), (49, 0.01), (50, 0.03), (99, 0.03), (100, 0.05), (150, 0.05)],
)
def test_the_budget_of_a_cycle_rises_with_the_epoch(epoch, budget):
    """0 to epoch 30, then 1, 3 and 5 %."""
    assert ProgressivePruningSchedule().get_pruning_budget(epoch) == budget
    assert budget_at(DEFAULT, epoch) == budget


@pytest.mark.parametrize(
    ("epoch", "cap"), [(0, 0.0), (30, 0.0), (31, 0.05), (60, 0.05), (61, 0.1), (90, 0.1), (91, 0.2), (500, 0.2)]
)
def test_all_cycles_together_have_a_cap(epoch, cap):
    """5 % to epoch 60, 10 % to 90, 20 % after it."""
    assert cap_at(DEFAULT, epoch) == cap


def test_the_safety_thresholds_are_those_of_the_source():
    """By the source's names, for every epoch."""
    expected = {
        "accuracy_drop_threshold": 0.02,
        "gradient_norm_threshold": 5.0,
        "memory_usage_threshold": 0.90,
        "training_speed_threshold": 0.90,
    }
    assert ProgressivePruningSchedule().get_safety_thresholds(31) == expected
    assert ProgressivePruningSchedule().get_safety_thresholds(119) == expected


@given(
    total=st.integers(1, 5_000_000_000), interval=INTERVALS, taken=st.lists(st.floats(0, 1), min_size=100, max_size=100)
)
def test_no_sequence_of_cycles_leads_over_a_cap(total, interval, taken):
    """This holds for any share of its allowance that a cycle uses; each stays within its own budget too, exactly."""
    plan = msgspec.structs.replace(DEFAULT, interval=interval)
    pruned = 0
    for epoch, share in zip(range(1, 125), [*taken, *taken], strict=False):
        allowed = allowed_at(plan, epoch, total, pruned)
        assert 0 <= allowed <= Fraction(repr(budget_at(plan, epoch))) * total
        if is_cycle_due(plan, epoch, phase_at(plan, epoch)):
            pruned += round(allowed * share)
        assert pruned <= Fraction(repr(cap_at(plan, epoch))) * total
        assert pruned <= plan.absolute_cap * total


def test_the_default_schedule_prunes_a_fifth():
    """Cycles that use all of their allowance reach the caps exactly: 5, 10 and 20 % of 1000 parameters."""
    pruned, after = 0, {}
    for epoch in range(1, 130):
        if phase_at(DEFAULT, epoch) is A and is_cycle_due(DEFAULT, epoch, A):
            pruned += allowed_at(DEFAULT, epoch, 1000, pruned)
        after[epoch] = pruned

    assert (after[34], after[35], after[60], after[90], after[129]) == (0, 10, 50, 100, 200)


@given(st.integers(0, 3000), st.integers(0, 3000))
def test_an_allowance_is_never_negative(total, pruned):
    """Also if more is pruned than the cap of an earlier epoch, as after a rollback."""
    assert allowed_at(DEFAULT, 100, total, pruned) >= 0


@pytest.mark.parametrize(("spread", "margin"), [(0.0, 0.02), (0.006, 0.02), (0.01, 0.03), (0.1, 0.3)])
def test_the_margin_follows_the_spread_of_validations(spread, margin):
    """max(0.02, 3 x spread)."""
    assert accuracy_margin(PruneSafety(), spread) == pytest.approx(margin)


@pytest.mark.parametrize(("samples", "margin"), [(0, 0.02), (25, 0.06), (75, 0.02), (10_000, 0.02)])
def test_the_margin_is_at_least_one_and_a_half_samples(samples, margin):
    """On 25 samples one that goes the other way is 4 %: more than the drop that is allowed."""
    assert accuracy_margin(PruneSafety(), 0.0, samples) == pytest.approx(margin)
    assert accuracy_trip(PruneSafety(), 0.0, 0.9, 0.9 - margin + 1e-6, samples) is None
    assert accuracy_trip(PruneSafety(), 0.0, 0.9, 0.9 - margin - 1e-6, samples) is not None


def test_the_numbers_are_those_of_the_messages():
    """A phase or decision of core is the message's with the same name."""
    for one in PruningPhase:
        assert PhaseMessage.Value(f"PRUNING_PHASE_{one.name}") == one
    for decision in PruningDecision:
        assert DecisionMessage.Value(f"PRUNING_DECISION_{decision.name}") == decision
