"""The detector over healthy shapes and faults: a short form in the ordinary suite, the long one under `make study`."""

from __future__ import annotations

import math

import pytest

from tests.study import judging, shapes
from tests.study.detection import (
    FAULTY,
    KINDS,
    LONG,
    QUIET,
    SEED,
    compositions,
    delays,
    from_the_start,
    healthy,
    kind_skipped,
)

SHAPES = [*shapes.SHAPES, *judging.SHAPES]
SHORT = ((2, 3000),)
# Of each kind the first: decay, swings, restarts, second kinds ...
FIRST = list({shape.kind: shape for shape in reversed(SHAPES)}.values())


def test_there_are_sixty_shapes_of_twelve_kinds_and_those_that_judge_are_others():
    """A shape that chose a constant cannot judge it."""
    chosen, held_out = ({(one.kind, one.name) for one in drawn} for drawn in (shapes.SHAPES, judging.SHAPES))

    assert len(chosen) == len(shapes.SHAPES) >= 60
    assert len(held_out) == len(judging.SHAPES) >= 30
    assert not chosen & held_out
    assert min(len({kind for kind, _ in drawn}) for drawn in (chosen, held_out)) >= 12


@pytest.mark.parametrize("shape", FIRST, ids=lambda shape: shape.kind)
def test_a_healthy_run_of_each_kind_is_never_gone_back_for(shape):
    """Two runs of 3000 steps; of a fixed seed, since one in a million may be."""
    tally = healthy(shape, SEED, SHORT)

    assert tally.gone_back == 0
    assert tally.skips_a_thousand <= 3.0


def test_random_compositions_are_left_alone():
    """Thirty of them; of 3000 the long form allows three."""
    assert compositions(SEED, 30, 2000)[0].gone_back == 0


@pytest.mark.parametrize(("fault", "steps"), [("x20", 2), ("x10", 64), ("x5", 64), ("not finite", 1)])
def test_a_fault_in_a_quiet_run_is_found_in_time(fault, steps):
    """Gone back for, or skipped at once if it is not finite."""
    for name in QUIET[:2]:
        measured = delays(name, fault, SEED, 3, 1200)
        assert max(measured.found if fault == "not finite" else measured.gone_back) < steps


def test_a_slow_drift_is_gone_back_for_before_eightfold():
    """Half a percent a step."""
    assert 1.005 ** max(delays(QUIET[0], "+0.5 % a step", SEED, 3, 1200).gone_back) < 8.0


def test_equal_seeds_draw_equal_runs():
    """And another seed others: the tables can be made again."""
    one, again, other = (from_the_start(1.1, seed, 4) for seed in (SEED, SEED, SEED + 1))

    assert one == again != other


@pytest.mark.study
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"{shape.kind}: {shape.name}")
def test_a_million_steps_of_a_healthy_shape_are_never_gone_back_for(shape):
    """And skips stay under one in a thousand."""
    tally = healthy(shape, SEED, LONG)

    assert tally.steps == 1_000_000
    assert tally.gone_back == 0
    assert tally.skips_a_thousand <= 1.0


@pytest.mark.study
def test_at_most_one_in_a_thousand_random_compositions_is_gone_back_for():
    """3000 runs of 4000 steps."""
    tally, _ = compositions(SEED, 3000)

    assert tally.gone_back <= 3
    assert tally.skips_a_thousand <= 1.0


@pytest.mark.study
@pytest.mark.parametrize(("share", "times"), KINDS)
def test_no_kind_of_batch_is_skipped_in_more_than_a_twentieth_of_its_steps(share, times):
    """After its first three."""
    assert kind_skipped(share, times, SEED, 8, 20_000) <= 0.05


@pytest.mark.study
@pytest.mark.parametrize("name", QUIET)
def test_every_fault_in_a_quiet_run_is_found_in_time(name):
    """Thirty runs each, young and old."""
    for begin in (1200, 3000):
        limits = {"x10": 64, "x5": 64, "+0.5 % a step": math.log(8.0) / math.log(1.005)}
        for fault, limit in limits.items():
            assert max(delays(name, fault, SEED, 30, begin).gone_back) < limit
        twenty = sorted(delays(name, "x20", SEED, 30, begin).gone_back)
        # Noise of 0.3 leaps by x3 now and then, and then it takes three in a row, or the level.
        assert twenty[26] < (24 if "0.3" in name else 2)
        assert max(delays(name, "not finite", SEED, 30, begin).found) == 0


@pytest.mark.study
@pytest.mark.parametrize("growth", [1.02, 1.05, 1.1, 1.2])
def test_every_divergence_from_the_start_is_gone_back_for_before_64_times_the_first_loss(growth):
    """Two hundred runs."""
    assert max(from_the_start(growth, SEED, 200)) < 64.0


@pytest.mark.study
@pytest.mark.parametrize("name", FAULTY)
def test_a_skip_of_one_bad_batch_leads_to_nothing_else(name):
    """Ten times the loss, once."""
    measured = delays(name, "once x10", SEED, 30, 1500)

    assert min(measured.gone_back) == math.inf
