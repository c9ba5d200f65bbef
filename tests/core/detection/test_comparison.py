"""Two states compared on the same batches: were the weights damaged, do the batches damage them, or neither?"""

from __future__ import annotations

import math

import pytest

from tolariad.core.calc.detection.comparison import (
    Comparison,
    Judgement,
    Losses,
    judged,
    lost,
    returned_is_better,
)
from tolariad.core.calc.noise import error_of

BEGIN = 2.3


def judgement(newest, held, begin=BEGIN):
    return judged(
        Comparison(None if newest is None else Losses(*newest), None if held is None else Losses(*held), begin)
    )


@pytest.mark.parametrize(
    ("newest", "held", "found"),
    [
        ((2.2, 0.1), (2.3, 0.2), Judgement.WEIGHTS),  # redrawn weights
        ((math.nan, 0.1), (math.inf, 0.2), Judgement.WEIGHTS),  # a loss that is not finite is lost
        ((2.3, 9.0), (2.2, 0.2), Judgement.DATA),  # random targets: both are bad at them, and they do harm
        ((0.6, 0.7), (0.2, 0.15), Judgement.CHANGED),  # label smoothing
        ((0.9, 3.0), (0.3, 0.2), Judgement.CHANGED),  # new classes are learnt
        ((2.2, 0.1), (0.2, 0.2), Judgement.UNCLEAR),  # worse on the newest batches alone
        ((0.6, 0.5), (0.7, 0.2), Judgement.UNCLEAR),  # held-out batches have suffered, and nothing was learnt
        ((0.3, 1.6), (1.4, 0.2), Judgement.CHANGED),  # all images are turned: the old ones are forgotten
        ((0.1, 0.003), (0.16, 0.025), Judgement.UNCLEAR),  # a layer was negated, and learning has healed most of it
        ((0.03, 0.015), (0.057, 0.03), Judgement.CHANGED),  # hard samples alone are shown
        ((0.18, 0.062), (0.45, 0.16), Judgement.UNCLEAR),  # Adam's second moments were zeroed, and most is learnt again
        ((0.025, 0.002), (0.13, 0.06), Judgement.UNCLEAR),  # a layer's gradient had the wrong sign
        ((0.65, 0.6), (0.55, 0.4), Judgement.UNCLEAR),  # rows of zeros: worse on both, and little of the way is lost
        ((0.09, 0.06), (0.158, 0.156), Judgement.CHANGED),  # three loud batches a moment ago
        ((2.2, 0.1), None, Judgement.WEIGHTS),
        ((0.5, 0.5), None, Judgement.UNCLEAR),
        (None, (2.2, 0.2), Judgement.WEIGHTS),
        (None, (0.2, 0.2), Judgement.CHANGED),
        (None, None, Judgement.UNCLEAR),
        # Without held-out batches: harder data that are learnt, and such a difference within the noise.
        ((0.5, 0.6, 0.02), None, Judgement.CHANGED),
        ((0.57, 0.6, 0.02), None, Judgement.UNCLEAR),
        ((0.5, 0.6), None, Judgement.UNCLEAR),
    ],
)
def test_a_comparison_is_judged_by_both_sets_of_batches(newest, held, found):
    """Each row of the table in the module."""
    assert judgement(newest, held) is found


def test_pinned_weights_with_an_unusual_loss_are_no_witness():
    """A queue of negatives lies outside the model: with another's queue the pinned weights do far too well."""
    pair = Losses(2.2, 0.5), Losses(2.3, 0.2)

    assert judged(Comparison(*pair, BEGIN, usual=0.55)) is Judgement.WEIGHTS
    assert judged(Comparison(*pair, BEGIN, usual=0.9)) is Judgement.UNCLEAR
    assert judged(Comparison(pair[0], None, BEGIN, usual=0.9)) is Judgement.UNCLEAR


def test_the_error_of_a_mean_is_that_of_the_differences_of_the_same_batches():
    """Not that of the losses: how hard a batch is counts for both. One batch tells nothing of its noise."""
    assert error_of([0.1, 0.3]) == pytest.approx(0.1)
    assert error_of([5.0, 5.0, 5.0]) == error_of([1.0]) == error_of([]) == error_of([1.0, math.nan]) == 0.0


def test_a_language_model_that_was_emptied_has_lost_its_way():
    """From 1.9 to 3.4, where it began: a factor of 1.8 alone would tell nothing."""
    assert judgement((3.4, 1.9), (3.5, 2.0), begin=3.9) is Judgement.WEIGHTS


def test_a_run_that_began_well_is_measured_by_its_loss():
    """A fine-tuned model has no way behind it. Half of its loss is the least unit."""
    assert lost(Losses(0.55, 0.5), 0.5) == pytest.approx(0.2)
    assert lost(Losses(5.0, 0.5), 0.5) > 1.0
    assert lost(Losses(0.4, 0.5), 2.0) < 0.0


def test_what_cannot_be_measured_is_not_judged():
    """The pinned weights have no loss, or there are no batches."""
    assert lost(None, BEGIN) is None
    assert lost(Losses(1.0, math.nan), BEGIN) is None


def test_the_branch_that_went_on_lives_if_both_are_equal():
    """It has made more updates; one that is not finite never lives if the other is."""
    assert not returned_is_better(0.5, 0.5)
    assert returned_is_better(0.4, 0.5)
    assert returned_is_better(0.4, math.nan)
    assert not returned_is_better(math.nan, 0.5)
    assert not returned_is_better(math.nan, math.nan)
