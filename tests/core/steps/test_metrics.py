"""Names of metrics are recorded once, at most 64; their means are those of the epoch's own steps."""

from __future__ import annotations

import math

import hypothesis
import pytest
from hypothesis import strategies

from tests.core.simulate import World
from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.core.state.steps import APPLY

AT = m.Cause(1, 1)
NAN = math.nan


def folded(*events):
    progress = st.Progress()
    for event in events:
        progress = APPLY[type(event)](progress, event, AT)
    return progress


def step(number, *metrics):
    return m.StepCompleted(
        step=number, epoch=1, batch=number, loss=1.0, grad_norm=1.0, lr=0.1, rates=1, metrics=metrics
    )


def named(*names):
    return m.MetricsNamed(names=names)


@pytest.mark.parametrize("kind", ["too many", "one too many", "there already", "twice"])
def test_names_that_are_too_many_or_there_already_are_refused(kind):
    """The trainer is ended, as for every report that cannot be true."""
    world = World(1)
    world.run(60)
    known = world.state.progress.metric_names
    many = tuple(f"m{n}" for n in range(65 - len(known)))
    good, bad = {
        "too many": ((), many),
        "one too many": (many[:-1], ("x",)),
        "there already": (("a",), known[:1]),
        "twice": ((), ("b", "b")),
    }[kind]
    for names in filter(None, (good, bad)):
        report = m.MetricsNamedReport(names=names)
        world.give(m.ReportReceived(incarnation=world.state.trainer.incarnation, report=report))
    refused = [event for event in world.events if isinstance(event, m.ReportRefused)]

    assert len(refused) == 1
    assert "names of metrics" in refused[0].why
    assert world.state.progress.metric_names == (*known, *good)


def test_means_are_over_the_steps_of_the_epoch_that_have_a_number():
    """A NaN is in none, and a metric without a number has none; the next epoch begins anew."""
    progress = folded(named("a", "b"), step(1, 1.0, NAN), step(2), named("c"), step(3, 2.0, NAN, math.inf))
    assert progress.epoch_metrics == {"a": 1.5, "c": math.inf}
    assert str(progress.step_metrics) == "{'a': 2.0, 'b': nan, 'c': inf}"

    started = APPLY[m.EpochStarted](progress, m.EpochStarted(epoch=2), AT)
    assert (started.epoch_metrics, started.metric_names) == ({}, ("a", "b", "c"))
    assert APPLY[m.StepCompleted](started, step(4, 5.0), AT).epoch_metrics == {"a": 5.0}
    assert APPLY[m.StepCompleted](progress, step(4), AT).step_metrics == {}


@hypothesis.given(
    strategies.lists(
        strategies.one_of(
            strategies.lists(strategies.text(max_size=3), max_size=70).map(lambda names: named(*names)),
            strategies.lists(strategies.floats(), max_size=70).map(lambda values: step(1, *values)),
            strategies.just(m.EpochStarted(epoch=1)),
        ),
        max_size=12,
    )
)
def test_the_fold_takes_whatever_an_event_holds(events):
    """It never raises; names are at most 64 and each there once, and every mean has one of them."""
    progress = folded(*events)

    assert len(set(progress.metric_names)) == len(progress.metric_names) <= 64
    assert set(progress.epoch_metrics) <= set(progress.metric_names)
    assert len(progress.step_metrics) <= 64
