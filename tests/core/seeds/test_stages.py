"""Stages, moves and weights against fact sheet A.8 and the numbers of Leyline; alpha between its exact ends."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tolariad.core.calc.seeds.blending import alpha
from tolariad.core.calc.seeds.gates import GATES, Gate
from tolariad.core.calc.seeds.stages import (
    CULLABLE,
    GROWTH,
    MOVES,
    PLANTED,
    WEIGHTS,
    Stage,
    is_legal,
    next_of,
    weight_of,
)
from tolariad.leyline.v1 import enums_pb2

# Fact sheet A.8, as it is written there.
LEGAL = """UNKNOWN→DORMANT; DORMANT→GERMINATED|TERMINATED; GERMINATED→TRAINING|CULLED; TRAINING→BLENDING|CULLED;
BLENDING→SHADOWING|CULLED; SHADOWING→PROBATIONARY|CULLED; PROBATIONARY→FOSSILIZED|CULLED; FOSSILIZED→TERMINATED;
CULLED→EMBARGOED→RESETTING→DORMANT"""


def written() -> set[tuple[Stage, Stage]]:
    """The pairs that the text allows."""
    pairs = set()
    for rule in LEGAL.replace("\n", " ").split(";"):
        names = [part.strip().split("|") for part in rule.split("→")]
        pairs |= {(Stage[a], Stage[b]) for left, right in pairwise(names) for a in left for b in right}
    return pairs


def test_the_table_of_moves_is_the_source_s():
    """Every pair of stages, the illegal ones too."""
    assert {(one, to) for one in Stage for to in Stage if is_legal(one, to)} == written()
    assert set(MOVES) == set(Stage)
    assert MOVES[Stage.TERMINATED] == frozenset()


def test_stages_and_gates_have_leyline_s_names_and_numbers():
    """No second enum: a number on the wire means the same stage."""
    stages = {f"SEED_STAGE_{one.name}": one.value for one in Stage}
    assert stages == dict(enums_pb2.SeedLifecycleStage.items())
    gates = {f"SEED_GATE_{one.name}": one.value for one in Gate}
    known = {name: number for name, number in enums_pb2.SeedLifecycleGate.items() if number}
    assert gates == known


def test_a_number_that_is_no_stage_moves_nowhere_and_weighs_nothing():
    """A newer trainer's stage must not get the weight 1 by default."""
    for number in (-1, 12, 99):
        assert not any(is_legal(number, to) or is_legal(to, number) for to in Stage)
        assert weight_of(number, 1.0) == 0.0


def test_weights_are_those_of_the_design():
    """0.01, 0.1, alpha, 0.5, and 0 for every other stage."""
    weighing = {stage: weight_of(stage, 0.25) for stage in Stage if weight_of(stage, 0.25)}
    assert weighing == {Stage.GERMINATED: 0.01, Stage.TRAINING: 0.1, Stage.BLENDING: 0.25, Stage.SHADOWING: 0.5}
    assert set(WEIGHTS) == set(Stage)


def test_growth_is_a_path_of_legal_moves_that_ends():
    """`advance` goes through every stage with a module, and each but the last can be culled."""
    path, stage = [Stage.GERMINATED], Stage.GERMINATED
    while (to := next_of(stage)) is not None:
        assert is_legal(stage, to)
        path.append(to)
        stage = to
    assert tuple(path) == GROWTH
    assert {*CULLABLE, Stage.FOSSILIZED} == PLANTED
    assert [next_of(one) for one in Stage if one not in GROWTH] == [None] * (len(Stage) - len(GROWTH))
    assert set(GATES) <= {to for moves in MOVES.values() for to in moves}


@given(st.integers(-10, 10_000), st.integers(1, 10_000), st.floats(0.01, 50.0))
def test_alpha_stays_within_its_exact_ends_and_never_falls(applied, steps, temperature):
    """0.0 and 1.0 are reached, at the first and the last step; each step is at least the one before."""
    now, then = alpha(applied, steps, temperature), alpha(applied + 1, steps, temperature)
    assert 0.0 <= now <= then <= 1.0
    assert (now == 1.0) or applied < steps
    assert (now == 0.0) or applied > 0
    assert alpha(0, max(1, steps), temperature) == 0.0
    assert alpha(steps, steps, temperature) == 1.0


@pytest.mark.parametrize("steps", [2, 10, 100])
def test_alpha_is_the_source_s_sigmoid_rescaled(steps):
    """sigma(4 pi (t - 1/2)) at temperature 2, minus its first value, over its whole rise."""

    def sigmoid(t):
        return 1 / (1 + math.exp(-4 * math.pi * (t - 0.5)))

    for applied in range(steps + 1):
        t = applied / steps
        expected = (sigmoid(t) - sigmoid(0)) / (sigmoid(1) - sigmoid(0))
        assert alpha(applied, steps) == pytest.approx(expected, abs=1e-12)
    assert alpha(steps // 2, steps) == 0.5
