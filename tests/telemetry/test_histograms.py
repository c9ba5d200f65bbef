"""Histograms of budgets are added up from events, beside the state, and need only the events that say something."""

from __future__ import annotations

from tests.core.facts import run_started
from tolariad.core import messages as m
from tolariad.core.calc.health.histogram import Bucket
from tolariad.core.messages.vocabulary import encode_event
from tolariad.core.state.run_state import RunState, fold
from tolariad.telemetry.histograms import BudgetHistograms, may_add

PLACE = {"step": 1, "epoch": 1, "batch": 0, "manifest": "", "pieces": (), "size": 1}


def of(*events):
    """Return the histograms of these values."""
    histograms = BudgetHistograms()
    for event in events:
        histograms.add(event)
    return histograms.by_budget


def test_tallies_and_durations_are_added_up_against_the_limit_of_their_time():
    """Two tallies of one budget are one histogram; a checkpoint is over the limit that holds when it is committed."""
    tally = m.BudgetHistogram(budget="lr_step", count=3, breaches=1, worst=6.0, counts=(Bucket(386, 2), Bucket(392, 1)))
    told = m.BudgetsMeasured(epoch=1, tallies=(tally,))
    slow = m.CheckpointCommitted(id="c000001", seconds=5.0, **PLACE)
    found = of(told, slow, run_started(budget_limits={"checkpoint": 4.0}), slow, told)

    assert (found["lr_step"].count, found["lr_step"].breaches, found["lr_step"].worst) == (6, 2, 6.0)
    assert (found["checkpoint"].count, found["checkpoint"].breaches) == (2, 1)


def test_a_budget_of_a_newer_version_is_passed_by():
    """The memory of a histogram stays bounded."""
    assert (
        of(
            m.BudgetsMeasured(
                epoch=1, tallies=(m.BudgetHistogram(budget="dreams", count=1, breaches=0, worst=1.0, counts=()),)
            )
        )
        == {}
    )


def test_events_that_say_nothing_need_not_be_decoded():
    """A step is not one of them, nor is a note; those of budgets and of their limits are."""
    step = m.StepCompleted(step=1, epoch=1, batch=1, loss=1.0, grad_norm=1.0, lr=0.1, rates=0)

    assert not may_add(encode_event(step))
    assert may_add(encode_event(run_started()))
    assert may_add(encode_event(m.CheckpointCommitted(id="c000001", seconds=5.0, **PLACE)))


def test_what_was_measured_is_no_part_of_the_state():
    """Two runs that differ in nothing but their times are in one state."""
    quick, slow = (
        fold(
            RunState(),
            (
                m.BudgetsMeasured(
                    epoch=1,
                    tallies=(
                        m.BudgetHistogram(budget="lr_step", count=1, breaches=0, worst=worst, counts=(Bucket(3, 1),)),
                    ),
                ),
            ),
        )
        for worst in (0.1, 0.2)
    )
    assert quick == slow
