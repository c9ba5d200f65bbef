"""After an announced change the detector begins anew: with a new level, and with the spread of batches that it knew."""

from __future__ import annotations

import math
import random

import msgspec
import pytest

from tolariad.core.calc.detection.announced import announced
from tolariad.core.calc.detection.detector import Detector, DetectorState
from tolariad.core.calc.detection.rules import Finding


def trained(draw, level=0.5, steps=1200, loud=0.0, detector=None):
    """A detector after a run of one level; `loud`: the share of batches forty times as loud."""
    detector = detector or Detector()
    for _ in range(steps):
        times = 40.0 if draw.random() < loud else 1.0
        detector.judge(level * times * math.exp(draw.gauss(0.0, 0.05)), 1.0, 0.1)
    return detector


@pytest.mark.parametrize("times", [0.01, 3.0, 60.0])
def test_after_an_announced_stage_the_level_is_new(seed, times):
    """Nothing is found, whatever the new level is; without the announcement x3 and x60 are findings."""
    draw = random.Random(seed)
    state = trained(draw).state()
    detector, plain = Detector(announced(state)), Detector(state)

    losses = [0.5 * times * math.exp(draw.gauss(0.0, 0.05)) for _ in range(600)]

    assert [one for loss in losses if (one := detector.judge(loss, 1.0, 0.1))] == []
    assert bool([one for loss in losses if (one := plain.judge(loss, 1.0, 0.1))]) == (times > 1.0)


def test_after_an_announced_stage_the_kinds_of_batches_stay_known(seed):
    """The spread, and how loud single batches are: a kind with a share of 3 % is not skipped again.

    Of its ten batches, one was in 51 of 3 438 draws, and never two.
    """
    draw = random.Random(seed)
    detector = Detector(announced(trained(draw, loud=0.03).state()))
    found = []
    for _ in range(600):
        loss = 5.0 * math.exp(draw.gauss(0.0, 0.05)) * (40.0 if draw.random() < 0.03 else 1.0)
        found.append(detector.judge(loss, 1.0, 0.1))

    assert len([one for one in found[256:] if one is not None]) <= 1


def test_what_a_stage_keeps_and_what_it_learns_again(seed):
    """Spread, excesses, tops, the size of swings, floor and rates are those of before; levels and counts are not."""
    before = trained(random.Random(seed), loud=0.03).state()
    kept = msgspec.msgpack.encode(before)
    after = announced(before)

    for one, other in ((before.course.losses, after.course.losses), (before.norms, after.norms)):
        assert (one.spread, one.excesses, one.tops) == (other.spread, other.excesses, other.tops)
        assert (other.count, other.last, other.blocks) == (0, [], [])
    assert before.course.floor == after.course.floor > 0.0
    assert before.course.rates == after.course.rates != []
    assert before.course.swing.size == after.course.swing.size
    assert (after.course.begin, after.row) == (0.0, 0)
    assert msgspec.msgpack.encode(before) == kept
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(after), type=DetectorState) == after


def test_a_fault_in_an_announced_stage_is_found(seed):
    """The limits are those of a run's first steps, then the usual ones."""
    draw = random.Random(seed)
    detector = Detector(announced(trained(draw).state()))
    trained(draw, level=2.0, steps=300, detector=detector)
    found = [one.finding for one in (detector.judge(100.0, 1.0, 0.1) for _ in range(5)) if one]

    assert found[0] is Finding.SPIKE
    assert Finding.EXPLOSION in found


def test_a_loss_that_explodes_after_an_announced_rate_is_found(seed):
    """No stage explains a loss a thousand times as high as any before: the third in a row is an explosion.

    If nobody goes back, it is the new level, and at most eight batches were called unhealthy.
    """
    draw = random.Random(seed)
    detector = Detector(announced(announced(trained(draw).state())))
    losses = [0.5, 40.0, *(5e8 * math.exp(draw.gauss(0.0, 0.3)) for _ in range(120))]
    found = [(at, one) for at, loss in enumerate(losses) if (one := detector.judge(loss, 1.0, 0.1))]

    assert [one.finding for _, one in found[:3]] == [Finding.SPIKE, Finding.SPIKE, Finding.EXPLOSION]
    assert [at for at, _ in found[:3]] == [2, 3, 4]
    assert found[2][1].baseline == pytest.approx(0.5, rel=0.5), "what was usual before the stage"
    assert len(found) <= 8
