"""Skipping ends by itself: whatever comes again and again is let through, however it is chosen."""

from __future__ import annotations

import math
import os
import random

import pytest

from tolariad.core.calc.detection.detector import Detector
from tolariad.core.calc.detection.rules import Action

SEED = int(os.environ.get("TOLARIA_SEED", "12"))
STEPS = 12_000


def skipped(verdict) -> bool:
    return verdict is not None and verdict.action is Action.SKIP


@pytest.mark.parametrize("every", [2, 7, 40])
@pytest.mark.parametrize("signal", ["loss", "norm"])
def test_an_adversary_who_climbs_with_the_limit_has_few_batches_skipped(every, signal):
    """Each `every`-th step is higher after a skip, and twice as high until one is skipped, up to the largest number."""
    noise = random.Random(SEED)
    detector, skips, height = Detector(), 0, 3.0
    for step in range(STEPS):
        values = {one: math.exp(0.1 * noise.gauss(0.0, 1.0)) for one in ("loss", "norm")}
        strikes = step > 300 and step % every == 0
        if strikes:
            values[signal] = height
        found = skipped(detector.judge(values["loss"], values["norm"], 0.1))
        if strikes:
            height = min(1e30, height**1.2 if found else height * 2.0)
        skips += found

    assert 0 < skips <= STEPS / 50


@pytest.mark.parametrize("number", range(8))
def test_of_no_kind_of_batch_more_than_a_twentieth_is_skipped_after_its_third(number):
    """Kinds of twice to a thousand times the loss, from a hundredth to a half of the steps."""
    draw = random.Random(f"{SEED} {number}")
    share, times, spread = 10 ** draw.uniform(-2.0, -0.3), 10 ** draw.uniform(0.3, 3.0), draw.uniform(0.02, 0.5)
    detector, met, skips = Detector(), 0, 0
    for step in range(STEPS):
        loss = math.exp(spread * draw.gauss(0.0, 1.0))
        is_of_it = step > 300 and draw.random() < share
        met += is_of_it
        found = skipped(detector.judge(loss * (times if is_of_it else 1.0), 1.0, 0.1))
        skips += found and is_of_it and met > 3

    print(f"TOLARIA_SEED={SEED}: share {share:.3f}, x{times:.1f}, spread {spread:.2f}: {skips} of {met}")
    assert skips <= met / 20
