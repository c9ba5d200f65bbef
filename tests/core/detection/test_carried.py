"""What the detector carries over a rollback."""

from __future__ import annotations

import math
import random

import msgspec

from tolariad.core.calc.detection.carried import loud, with_loud
from tolariad.core.calc.detection.detector import Detector
from tolariad.core.calc.detection.loud import Loud
from tolariad.core.calc.detection.rules import Finding


def trained(draw, level=0.5, steps=1200, detector=None):
    """A detector after a run of one level."""
    detector = detector or Detector()
    for _ in range(steps):
        detector.judge(level * math.exp(draw.gauss(0.0, 0.05)), 1.0)
    return detector


def test_a_loud_kind_that_caused_a_rollback_stays_known(seed):
    """Three loud batches were found after the pin. The detector of the pin would find them again."""
    draw = random.Random(seed)
    detector = trained(draw)
    target = detector.state()
    for _ in range(4):
        for _ in range(3):
            detector.judge(20.0, 1.0)
        trained(draw, steps=40, detector=detector)

    returned = Detector(with_loud(target, loud(detector.state())))
    found = {one.finding for _ in range(3) if (one := returned.judge(20.0, 1.0))}

    assert [Detector(target).judge(20.0, 1.0).finding] == [Finding.SPIKE]
    assert Finding.EXPLOSION not in found


def test_what_is_kept_is_only_how_loud_single_values_are(seed):
    """Everything else is the target's, which is not changed itself. Signed losses keep nothing."""
    draw = random.Random(seed)
    detector = trained(draw)
    target = detector.state()
    before = msgspec.msgpack.encode(target)
    trained(draw, level=50.0, steps=100, detector=detector)

    known = with_loud(target, loud(detector.state()))

    assert loud(known) == loud(detector.state())
    assert known.course.swing == target.course.swing
    assert known.course.losses.level == target.course.losses.level
    assert with_loud(target, Loud()) == target
    assert msgspec.msgpack.encode(target) == before
    detector.judge(-1.0, 1.0)
    assert loud(detector.state()).loss == 0.0
