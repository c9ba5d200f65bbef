"""Each gate: a seed that passes it, and every reason for which one does not."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tolariad.core.calc.seeds.gates import Gate, GateLimits, SeedMeasure, judge, judge_impact
from tolariad.core.calc.seeds.stages import Stage

LIMITS = GateLimits(min_steps=10, max_gradient_norm=5.0, max_dropped=0.1, max_drift=0.5, max_latency_ms=2.0)
SOUND = {
    Gate.G0_SANITY: SeedMeasure(slot="a", stage=Stage.DORMANT, parameters=40, drift=0.0),
    Gate.G1_GRADIENT_HEALTH: SeedMeasure(
        slot="a", stage=Stage.TRAINING, parameters=40, steps_in_stage=20, gradient_norm=1.0, dropped=2
    ),
    Gate.G2_STABILITY: SeedMeasure(
        slot="a", stage=Stage.BLENDING, alpha=1.0, parameters=40, steps_in_stage=20, drift=0.4, latency_ms=1.0
    ),
    Gate.G3_INTERFACE: SeedMeasure(slot="a", stage=Stage.SHADOWING, alpha=1.0, parameters=40, steps_in_stage=10),
    Gate.G4_SYSTEM_IMPACT: SeedMeasure(slot="a", stage=Stage.PROBATIONARY, alpha=1.0, steps_in_stage=10),
    Gate.G5_RESET: SeedMeasure(slot="a", stage=Stage.RESETTING),
}
FAULTS = [
    (Gate.G0_SANITY, {"parameters": 0}, "no parameters"),
    (Gate.G0_SANITY, {"non_finite": 3}, "3 elements"),
    (Gate.G0_SANITY, {"drift": -1.0}, "not compared"),
    (Gate.G0_SANITY, {"drift": 1e-9}, "unchanged"),
    (Gate.G0_SANITY, {"interface_violations": 1}, "shape or dtype than its input 1 time"),
    (Gate.G1_GRADIENT_HEALTH, {"steps_in_stage": 9, "dropped": 0}, "in TRAINING for 9 updates; it needs 10"),
    (Gate.G1_GRADIENT_HEALTH, {"isolation_violations": 1}, "reached the host 1 time"),
    (Gate.G1_GRADIENT_HEALTH, {"dropped": 3}, "3 of 20 updates"),
    (Gate.G1_GRADIENT_HEALTH, {"gradient_norm": -1.0}, "was not measured"),
    (Gate.G1_GRADIENT_HEALTH, {"gradient_norm": 0.0}, "does not learn"),
    (Gate.G1_GRADIENT_HEALTH, {"gradient_norm": 5.1}, "the limit is 5"),
    (Gate.G2_STABILITY, {"alpha": 0.999}, "alpha is 0.999"),
    (Gate.G2_STABILITY, {"dropped": 3}, "3 of 20 updates"),
    (Gate.G2_STABILITY, {"drift": 0.6}, "the limit is 0.5"),
    (Gate.G2_STABILITY, {"drift": -1.0}, "was not measured"),
    (Gate.G2_STABILITY, {"latency_ms": 2.1}, "the limit is 2"),
    (Gate.G3_INTERFACE, {"steps_in_stage": 0}, "in SHADOWING for 0 updates"),
    (Gate.G3_INTERFACE, {"interface_violations": 2}, "2 times"),
    (Gate.G4_SYSTEM_IMPACT, {"steps_in_stage": 9}, "it needs 10"),
    (Gate.G4_SYSTEM_IMPACT, {"isolation_violations": 2}, "2 times"),
    (Gate.G4_SYSTEM_IMPACT, {"dropped": 2}, "2 of 10 updates"),
    *(
        (gate, {"non_finite": 2}, "2 elements of the seed's parameters are not finite")
        for gate in (Gate.G1_GRADIENT_HEALTH, Gate.G2_STABILITY, Gate.G3_INTERFACE, Gate.G4_SYSTEM_IMPACT)
    ),
    (Gate.G5_RESET, {"parameters": 40}, "still holds 40 parameters"),
    (Gate.G5_RESET, {"alpha": 0.5}, "must be 0"),
]


@pytest.mark.parametrize("gate", Gate)
def test_a_sound_seed_passes_every_gate(gate):
    """Numbers at their limits pass."""
    assert judge(gate, SOUND[gate], LIMITS) == ""


@pytest.mark.parametrize(("gate", "fault", "why"), FAULTS, ids=lambda one: str(one)[:40])
def test_a_fault_fails_its_gate_with_a_reason(gate, fault, why):
    """The reason has the measured number and the limit."""
    assert why in judge(gate, replace(SOUND[gate], **fault), LIMITS)


def test_a_limit_that_is_not_set_needs_no_measurement():
    """Drift and latency are not limited by default."""
    unmeasured = replace(SOUND[Gate.G2_STABILITY], drift=-1.0, latency_ms=-1.0)
    assert judge(Gate.G2_STABILITY, unmeasured, GateLimits()) == ""


@pytest.mark.parametrize(
    ("before", "now", "passes"),
    [
        (1.0, 1.05, True),
        (1.0, 1.06, False),
        (1.0, 0.1, True),
        (1.0, float("nan"), False),
        (1.0, float("inf"), False),
        (-1.0, -0.95, True),
        (-1.0, -0.9, False),
        (0.0, 0.0, True),
        (0.0, 1e-9, False),
        (None, 9.0, True),
        (1.0, None, True),
    ],
)
def test_a_seed_that_makes_the_validation_worse_is_not_fossilized(before, now, passes):
    """By a share of the loss before the blending; a loss that is no number fails, one that is missing does not."""
    assert (judge_impact(before, now, 0.05) == "") is passes
