"""Curves with few points, in which every extreme is kept."""

from __future__ import annotations

import math
from array import array

from tolariad.forensics.report.pyramid import BUCKETS, WINDOW, curve

MANY = 50_000


def test_one_spike_of_many_steps_is_the_greatest_of_its_bucket():
    """And the lowest step is the least of its own."""
    values = array("d", [1.0]) * MANY
    values[31_219], values[17] = 960.0, -3.0
    found = curve(range(1, MANY + 1), values)

    assert len(found.x) <= BUCKETS
    assert (max(found.high), min(found.low)) == (960.0, -3.0)
    size = MANY // BUCKETS
    assert found.x[found.high.index(960.0)] <= 31_220 < found.x[found.high.index(960.0)] + size


def test_values_that_are_not_finite_hide_nothing_and_are_counted():
    """A NaN in a bucket leaves its other values; a bucket of NaN alone is a gap."""
    values = array("d", [2.0]) * MANY
    values[0], values[1], values[2] = math.nan, 7.0, math.inf
    size = MANY // BUCKETS
    for at in range(size, 2 * size):
        values[at] = math.nan
    found = curve(range(1, MANY + 1), values)

    assert (found.low[:2], found.high[:2]) == ([2.0, None], [7.0, None])
    assert found.not_finite == 2 + size


def test_the_steps_around_an_event_are_exact():
    """Every one of them, and none twice where two events are close."""
    values = array("d", range(MANY))
    found = curve(range(1, MANY + 1), values, [30_000, 30_010])

    places = [x for one in found.exact for x in one.x]
    assert places == list(range(30_000 - WINDOW, 30_010 + WINDOW + 1))
    assert [y for one in found.exact for y in one.y] == [x - 1 for x in places]


def test_a_short_run_is_there_whole():
    """Each step with its value."""
    found = curve([1, 2, 3], array("d", [0.5, math.nan, 0.25]))

    assert (found.x, found.low, found.high, found.not_finite) == ([1, 2, 3], [0.5, None, 0.25], None, 1)
