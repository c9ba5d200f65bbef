"""The limit for a hang follows from the usual duration of the present activity."""

from __future__ import annotations

from tolariad.channel import Activity, Heartbeat
from tolariad.supervisor.hang import HangLimits, HangMonitor

SECOND = 1_000_000_000


def test_the_start_has_the_long_limit():
    """Imports and the first step may take 600 s before they count as hung."""
    monitor = HangMonitor(HangLimits(), 0)
    assert monitor.check(Heartbeat(0, 0, Activity.IMPORT), 599 * SECOND) is None
    silence = monitor.check(Heartbeat(0, 0, Activity.IMPORT), 601 * SECOND)
    assert (silence.activity, silence.limit_s) == ("import", 600.0)


def test_slow_steps_raise_the_limit():
    """With steps of 10 s, silence of 100 s is accepted and 201 s is a hang."""
    monitor = HangMonitor(HangLimits(), 0)
    for step in range(1, 6):
        monitor.check(Heartbeat(step, step * 10 * SECOND, Activity.STEP), step * 10 * SECOND)
    last = Heartbeat(5, 50 * SECOND, Activity.STEP)
    assert monitor.check(last, 150 * SECOND) is None
    assert monitor.check(last, 251 * SECOND).limit_s == 200.0


def test_fast_steps_seen_seldom_are_not_taken_for_slow():
    """Checking steps of 1 ms every 10 s leaves the limit at its minimum."""
    monitor = HangMonitor(HangLimits(), 0)
    for look in range(1, 6):
        monitor.check(Heartbeat(look * 10_000, look * 10 * SECOND, Activity.STEP), look * 10 * SECOND)
    assert monitor.limit_s(Activity.STEP) == 30.0


def test_waiting_activities_beat_by_promise():
    """At the gate, held or after the end the minimum limit holds at once."""
    monitor = HangMonitor(HangLimits(), 0)
    assert {monitor.limit_s(one) for one in (Activity.GATE, Activity.HELD, Activity.END)} == {30.0}


def test_one_large_file_among_small_ones_is_no_hang():
    """After files of 40 s, 1 s and 1 s the next checkpoint may take 120 s for one file."""
    monitor = HangMonitor(HangLimits(), 0)
    for second in (0, 40, 41, 42):
        monitor.check(Heartbeat(1, second * SECOND + 1, Activity.CHECKPOINT), second * SECOND + 1)
    assert monitor.limit_s(Activity.CHECKPOINT) == 120.0


def test_a_compiler_may_take_as_long_as_anything_unknown():
    """The time of one graph predicts neither the next graph nor the steps."""
    monitor = HangMonitor(HangLimits(), 0)
    for number in range(1, 20):
        monitor.check(Heartbeat(number, number * 2 * SECOND, Activity.COMPILE), number * 2 * SECOND)
        monitor.check(Heartbeat(number, (number * 2 + 1) * SECOND, Activity.STEP), (number * 2 + 1) * SECOND)
    assert monitor.limit_s(Activity.COMPILE) == HangLimits().unknown_s
    assert monitor.limit_s(Activity.STEP) == HangLimits().floor_s
