"""A rise that is watched: it comes down by itself, stays, or grows."""

from __future__ import annotations

import math
import random

import pytest

from tolariad.core.calc.detection.watch import HORIZON, Outcome, Watch, followed


def outcome(watch, losses):
    """How the watch ended, and after how many losses."""
    for count, loss in enumerate(losses, 1):
        watch, found = followed(watch, loss)
        if found is not None:
            return found, count
    return None, len(losses)


def test_a_rise_that_comes_down_is_released(seed):
    """It falls from x8 by 5 % a step. It is down when a median of 32 losses is below x2."""
    draw = random.Random(seed)
    losses = [max(0.5, 4.0 * 0.95**t) * math.exp(draw.gauss(0.0, 0.1)) for t in range(HORIZON)]

    found, after = outcome(Watch(0.5, 4.0), losses)

    assert found is Outcome.CAME_DOWN
    assert 32 <= after <= 72


def test_a_small_rise_must_lose_half_of_itself():
    """A rise of x1.5, as of a language model: x1.3 is not down, x1.2 is."""
    assert outcome(Watch(2.0, 3.0), [2.6] * HORIZON) == (Outcome.STAYS, HORIZON)
    assert outcome(Watch(2.0, 3.0), [2.4] * HORIZON)[0] is Outcome.CAME_DOWN


def test_single_loud_batches_are_down_at_once():
    """Three losses of x40, and the usual ones after them."""
    assert outcome(Watch(1.0, 40.0), [40.0, 1.0, 40.0, *[1.0] * 40]) == (Outcome.CAME_DOWN, 32)


def test_a_rise_that_stays_is_compared_at_the_horizon():
    """Neither higher nor lower: nothing is said before."""
    assert outcome(Watch(0.5, 3.0), [3.0] * 500) == (Outcome.STAYS, HORIZON)
    assert outcome(Watch(0.5, 3.0, horizon=256), [3.0] * 500) == (Outcome.STAYS, 256)


def test_a_rise_that_grows_is_compared_sooner():
    """By 2 % a step, from x6."""
    found, after = outcome(Watch(0.5, 3.0), [3.0 * 1.02**t for t in range(HORIZON)])

    assert found is Outcome.GROWS
    assert 64 <= after < HORIZON


def test_losses_of_either_sign_come_down_by_half_of_their_rise():
    """Their scale is the task's unit."""
    assert outcome(Watch(-2.0, 6.0, scale=1.0), [1.9] * 40)[0] is Outcome.CAME_DOWN
    assert outcome(Watch(-2.0, 6.0, scale=1.0), [2.5] * HORIZON)[0] is Outcome.STAYS


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_enters_nothing(value):
    """The detector answers it."""
    watch, _ = followed(Watch(0.5, 3.0), 3.0)

    assert followed(watch, value) == (watch, None)


def test_a_watch_is_a_fold(seed):
    """The same losses give the same watch, wherever it is cut."""
    draw = random.Random(seed)
    losses = [math.exp(draw.gauss(1.0, 0.3)) for _ in range(100)]
    first = whole = Watch(0.5, 3.0)
    for loss in losses[:40]:
        first, _ = followed(first, loss)
    for loss in losses:
        whole, _ = followed(whole, loss)
    for loss in losses[40:]:
        first, _ = followed(first, loss)

    assert first == whole
    assert len(whole.last) == 32
