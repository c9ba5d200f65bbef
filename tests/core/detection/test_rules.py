"""The two rules that need no window, as tables."""

from __future__ import annotations

import math

import pytest

from tolariad.core.calc.detection.rules import (
    CALLS_FOR,
    Action,
    Finding,
    Signal,
    Verdict,
    accuracy_collapsed,
    is_stalled,
    is_watched,
)


@pytest.mark.parametrize(
    ("accuracy", "average", "chance", "collapsed"),
    [
        (0.97, 0.96, 0.1, False),
        (0.49, 0.96, 0.1, False),
        (0.47, 0.96, 0.1, True),
        (0.105, 0.205, 0.1, True),
        (0.12, 0.205, 0.1, False),
        (0.11, 0.12, 0.1, False),
        (0.49, 0.9, None, False),
        (0.52, 0.9, 0.5, True),
        (0.56, 0.9, 0.5, False),
        (0.52, 0.7, 0.5, False),
        (0.36, 0.68, 1 / 3, True),
        (math.nan, 0.5, None, True),
        (0.0, None, 0.1, False),
    ],
)
def test_an_accuracy_collapses_below_half_its_average_or_at_chance(accuracy, average, chance, collapsed):
    """One validation is enough. Without an accuracy to lose there is no collapse."""
    verdict = accuracy_collapsed(accuracy, average, chance)

    assert (verdict is not None) == collapsed
    if verdict:
        assert (verdict.finding, verdict.action) == (Finding.COLLAPSE, Action.ROLLBACK)


@pytest.mark.parametrize(
    ("step_s", "typical_s", "stalled"), [(0.9, 0.001, False), (1.1, 0.001, True), (19.0, 1.0, False), (21.0, 1.0, True)]
)
def test_a_stalled_step_is_recorded_and_never_acted_on(step_s, typical_s, stalled):
    """Twenty times as long as others, and more than a second: time never changes weights."""
    verdict = is_stalled(step_s, typical_s)

    assert (verdict is not None) == stalled
    if verdict:
        assert verdict.action is Action.RECORD


def test_every_finding_calls_for_something():
    """The table is whole."""
    assert set(CALLS_FOR) == set(Finding)


@pytest.mark.parametrize(
    ("finding", "signal", "run_of", "expected"),
    [
        (Finding.SUSTAINED, Signal.LOSS, 20, True),
        (Finding.EXPLOSION, Signal.LOSS, 2, True),
        (Finding.LOST, Signal.LOSS, 32, True),
        (Finding.EXPLAINED, Signal.LOSS, 32, True),
        (Finding.SPIKE, Signal.LOSS, 3, False),
        (Finding.SPIKE, Signal.LOSS, 4, True),
        (Finding.SPIKE, Signal.GRAD_NORM, 4, False),
        (Finding.RISE, Signal.LOSS, 20, False),
        (Finding.COLLAPSE, Signal.ACCURACY, 1, False),
        (Finding.NON_FINITE, Signal.LOSS, 3, False),
        (Finding.NON_FINITE, Signal.GRAD_NORM, 4, True),
        (Finding.SHIFT, Signal.GRAD_NORM, 5, False),
    ],
)
def test_an_insured_run_watches_what_may_be_a_fault(finding, signal, run_of, expected):
    """Lasting rises, and four high or non-finite losses in a row: those are no single batches."""
    assert is_watched(Verdict(finding, signal, 3.0, 0.5, 2.0, run_of)) is expected


@pytest.mark.parametrize(("norm", "usual", "expected"), [(49.0, 0.5, False), (51.0, 0.5, True), (51.0, 0.0, False)])
def test_a_norm_that_leapt_a_hundredfold_alone_was_scaled_wrongly(norm, usual, expected):
    """Less is where learning begins. Without a usual norm nothing leapt."""
    assert is_watched(Verdict(Finding.SHIFT, Signal.GRAD_NORM, norm, usual, 2.0, 5)) is expected
