"""Runs whose loss still falls fast."""

import math

import pytest

from tests.core.detection.test_detector import calm
from tolariad.core.calc.detection.detector import Detector
from tolariad.core.calc.detection.rules import Finding


@pytest.mark.parametrize(
    ("later", "loss", "finding"), [(0, 2.0, None), (0, 4.6, Finding.SPIKE), (300, 2.0, Finding.SPIKE)]
)
def test_a_hard_batch_of_a_young_run_is_not_skipped(later, loss, finding):
    """The loss falls from 2.3 to 0.1 in 300 steps. Until step 512 only a loss above the first ones is a spike."""
    detector = Detector()
    for t in range(300):
        assert detector.judge(2.3 * math.exp(-t / 96), 1.0) is None
    verdict = calm(later, 0.1, detector=detector).judge(loss, 1.0)

    assert (verdict.finding if verdict else None) is finding
