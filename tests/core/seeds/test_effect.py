"""A strategy's seed becomes part of the model only if it helps by more than chance."""

from __future__ import annotations

import math
import random

import pytest

from tolariad.core.calc.noise import ERRORS
from tolariad.core.calc.seeds.effect import effect_of, judge_effect


def drawn(draw, parts, gain):
    """Return losses of the same parts with a seed, which adds noise and lowers all by `gain`, and without it."""
    without = [abs(draw.gauss(0.5, 0.4)) for _ in range(parts)]
    return [loss - gain + draw.gauss(0.0, 0.1) for loss in without], without


def test_on_few_samples_luck_is_no_effect():
    """Of 1000 seeds without an effect some 2 in 100 pass on 24 samples. By the mean alone half would."""
    draw = random.Random(5)
    effects = [effect_of(*drawn(draw, 24, 0.0)) for _ in range(1000)]

    assert sum(one.gain > 0.0 for one in effects) > 400
    assert sum(judge_effect(one, ERRORS) == "" for one in effects) < 60


@pytest.mark.parametrize(("parts", "gain"), [(24, 0.15), (4000, 0.01)])
def test_a_real_effect_passes(parts, gain):
    """A third of the loss, on 24 samples; a fiftieth of it, on 4000."""
    draw = random.Random(6)
    passed = sum(judge_effect(effect_of(*drawn(draw, parts, gain)), ERRORS) == "" for _ in range(20))

    assert passed == 20


def test_a_refusal_says_how_much_it_helps_and_how_much_may_be_chance():
    """Worse, equal, or better by less than the noise."""
    said = judge_effect(effect_of([0.4, 0.6, 0.5], [0.5, 0.5, 0.6]), ERRORS)

    assert "lower by 0.03333 with the seed than without it; by chance it may be 0.1333 (of 3 parts" in said
    assert judge_effect(effect_of([0.5, 0.5], [0.5, 0.5]), ERRORS)
    assert judge_effect(effect_of([0.6, 0.7], [0.5, 0.5]), ERRORS)


@pytest.mark.parametrize(
    "losses", [([], []), ([0.1], [0.5]), ([math.nan, 0.1], [0.5, 0.5]), ([0.1, 0.2], [math.inf, 1.0])]
)
def test_what_cannot_be_measured_is_not_judged(losses):
    """Fewer than two parts, or a loss that is not finite: other gates judge those."""
    assert effect_of(*losses) is None
    assert judge_effect(None, ERRORS) == ""
