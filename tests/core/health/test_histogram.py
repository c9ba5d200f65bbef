"""Histograms of what was measured: bounded, exact to add up, the same on every machine."""

from __future__ import annotations

import math
from functools import reduce

from hypothesis import given
from hypothesis import strategies as st

from tolariad.core.calc.health.histogram import BUCKETS, Bucket, Histogram, added, bucket_of, upper_end, with_one

sensible = st.floats(1e-5, 1e12)


@given(sensible)
def test_a_value_lies_in_its_bucket(value):
    """Not above its end, not at or below the end of the one before; the bucket is 6.25 % wide at most."""
    bucket = bucket_of(value)

    assert upper_end(bucket - 1) <= value < upper_end(bucket)
    assert upper_end(bucket) <= upper_end(bucket - 1) * 1.0625


@given(st.floats())
def test_every_number_has_a_bucket(value):
    """Negative ones, endless ones and none at all too."""
    assert 0 <= bucket_of(value) < BUCKETS


def test_numbers_at_the_ends_have_the_buckets_at_the_ends():
    """A value that is not positive counts as the least, an infinite one as the most."""
    assert [bucket_of(value) for value in (-1.0, 0.0, math.nan, math.inf)] == [0, 0, 0, BUCKETS - 1]


@given(st.lists(sensible, min_size=1, max_size=60), st.sampled_from([0.5, 0.9, 0.99, 1.0]))
def test_a_quantile_is_told_a_little_too_high_at_most(values, share):
    """Between the exact one and 6.25 % above it, and never above the greatest value."""
    histogram = reduce(lambda so_far, value: with_one(so_far, value, 1.0), values, Histogram())
    exact = sorted(values)[max(0, math.ceil(share * len(values)) - 1)]

    assert exact <= histogram.quantile(share) <= min(exact * 1.0625, max(values))


@given(st.lists(sensible, max_size=30), st.lists(sensible, max_size=30))
def test_adding_up_in_pieces_is_adding_up_at_once(first, second):
    """A tally of the second part, added to the first, is what measuring one by one gives."""
    one_by_one = reduce(lambda so_far, value: with_one(so_far, value, 7.0), [*first, *second], Histogram())
    half = reduce(lambda so_far, value: with_one(so_far, value, 7.0), second, Histogram())
    both = added(
        reduce(lambda so_far, value: with_one(so_far, value, 7.0), first, Histogram()),
        count=half.count,
        breaches=half.breaches,
        worst=half.worst,
        counts=half.counts,
    )

    assert both == one_by_one
    assert both.breaches == sum(value > 7.0 for value in [*first, *second])


def test_what_was_never_measured_has_no_quantile():
    """Nor has a tally whose numbers make no sense; they are brought within bounds."""
    odd = added(Histogram(), count=-5, breaches=2**70, worst=math.nan, counts=(Bucket(-4, -3), Bucket(2**40, 0)))

    assert Histogram().quantile(0.5) is None
    assert odd.quantile(0.99) is None
    assert (odd.count, odd.breaches, odd.worst, odd.counts) == (
        0,
        2**64 - 1,
        0.0,
        (Bucket(0, 0), Bucket(BUCKETS - 1, 0)),
    )
