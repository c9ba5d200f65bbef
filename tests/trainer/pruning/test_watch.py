"""The measurements of the safety window: what trips it, when, and what is left out because nobody knows it."""

from __future__ import annotations

import math

import pytest
import torch
from msgspec.structs import replace

from tolariad.core.calc.pruning.verdict import WindowAction
from tolariad.core.calc.settings.pruning import PruneSafety
from tolariad.trainer.pruning import watch
from tolariad.trainer.pruning.watch import StepTimes, Window, WindowWatch, memory_in_use

CPU = torch.device("cpu")
FIRST, GRACE, STEPS = 101, 20, 200
SAFETY = PruneSafety()


@pytest.fixture(autouse=True)
def memory(monkeypatch):
    """The shares of the memory that are in use: before the masks, then at every look; the last one stays."""
    shares = [0.5]
    monkeypatch.setattr(watch, "memory_in_use", lambda device: shares.pop(0) if len(shares) > 1 else shares[0])
    return shares


def report(norms=lambda step: 1.0, seconds=lambda step: 0.01, *, norm_before=1.0, step_s_before=0.01):
    """Return the only report of a window whose steps have these norms and times."""
    window = Window(1, FIRST, GRACE, STEPS, norm_before)
    one = WindowWatch(window, SAFETY, CPU, step_s_before=step_s_before)
    found = [one.saw(step, norms(step), seconds(step)) for step in range(FIRST, FIRST + 400)]
    (told,) = [each for each in found if each is not None]
    assert one.is_over
    return told


def test_a_window_in_which_nothing_happens_ends_with_its_numbers():
    """At its last update, with no limit exceeded."""
    found = report()
    assert (found.step, found.trips) == (FIRST + GRACE + STEPS - 1, ())
    assert (found.norm_ratio, found.speed_ratio, found.memory) == (1.0, 1.0, 0.5)


@pytest.mark.parametrize("norm", [5.1, math.inf, math.nan])
def test_a_gradient_norm_of_five_times_trips_after_the_grace(norm):
    """In the first look after it; the same norm within the grace is not judged."""
    found = report(lambda step: norm)
    (trip,) = found.trips
    assert (trip.threshold, trip.action) == ("gradient_norm_threshold", WindowAction.ROLLBACK)
    assert found.step < FIRST + GRACE + 16
    assert report(lambda step: norm if step < FIRST + GRACE else 1.0).trips == ()


def test_a_single_high_norm_is_no_reason():
    """The median is judged."""
    assert report(lambda step: 100.0 if step % 10 == 0 else 1.0).trips == ()


def test_slow_steps_trip_at_the_end_of_the_window():
    """The median of its steps against that of as many before."""
    found = report(seconds=lambda step: 0.012)
    (trip,) = found.trips
    assert (trip.threshold, trip.action) == ("training_speed_threshold", WindowAction.RELEASE)
    assert found.speed_ratio == pytest.approx(0.01 / 0.012)
    assert report(seconds=lambda step: 1.0 if step % 7 == 0 else 0.01).trips == ()


def test_the_configured_action_goes_with_a_trip(memory):
    """`prune.safety.memory_action` and `speed_action`: the report names what the kernel does."""
    memory[:] = [0.5, 0.95]
    letter = replace(SAFETY, memory_action="rollback", speed_action="rollback")
    one = WindowWatch(Window(1, FIRST, GRACE, STEPS, 1.0), letter, CPU, step_s_before=0.01)
    found = next(found for at in range(STEPS + GRACE) if (found := one.saw(FIRST + at, 1.0, 0.02)))
    assert [trip.action for trip in found.trips] == [WindowAction.ROLLBACK]


def test_full_memory_trips_unless_it_was_full_before(memory):
    """Masks are not the reason for what was in use before them."""
    memory[:] = [0.5, 0.95]
    (trip,) = report().trips
    assert (trip.threshold, trip.action) == ("memory_usage_threshold", WindowAction.RELEASE)
    memory[:] = [0.95]
    assert report().trips == ()


def test_what_was_not_measured_before_is_not_judged():
    """After a restart nobody knows the time of a step before the masks; norms may be switched off."""
    found = report(lambda step: 50.0, lambda step: 1.0, norm_before=None, step_s_before=None)
    assert (found.trips, found.norm_ratio, found.speed_ratio) == ((), None, None)
    assert report(lambda step: -1.0).norm_ratio is None
    assert report(seconds=lambda step: None).speed_ratio is None


def test_a_restart_after_the_window_judges_nothing():
    """One norm is no median: the report says that the window is over, and no more."""
    one = WindowWatch(Window(1, FIRST, GRACE, STEPS, 1.0), SAFETY, CPU)
    found = one.saw(FIRST + 500, 100.0, None)
    assert (found.trips, found.norm_ratio) == ((), None)


def test_the_median_of_step_times_needs_enough_steps():
    """And the time after a stop is not that of a step."""
    times = StepTimes(200)
    assert times.since_last(1.0) is None
    for _ in range(49):
        times.add(0.5)
    assert times.median is None
    times.add(0.5)
    assert times.median == 0.5
    times.since_last(2.0)
    times.stop()
    assert times.since_last(9.0) is None
    assert times.since_last(9.5) == 0.5


def test_the_memory_in_use_is_a_share():
    """Of the host, for a model on the CPU."""
    assert 0.0 < watch_memory() < 1.0


def watch_memory():
    """Return what the system says, not the fixture."""
    return memory_in_use(CPU)
