"""Histograms of durations and shares: bounded, exact to add, and the same on every machine.

A bucket is a sixteenth of an octave. A quantile is at most 3 to 6 % too high, and never above the greatest value
measured. Promises: adding in pieces gives the same result as adding at once. Every number has a bucket, even one that
makes no sense.
"""

import math
from collections.abc import Iterable
from typing import Final

import msgspec

from tolariad.core.calc.bounds import storable

_PARTS: Final = 16
# Of the binary exponent: from about 1e-6 to 1.8e13.
_LOWEST: Final = -20
BUCKETS: Final = 64 * _PARTS


class Bucket(msgspec.Struct, frozen=True, array_like=True):
    """The count of one bucket."""

    bucket: int
    number: int


def bucket_of(value: float) -> int:
    """Return the bucket of a value: the first for a value that is not positive, the last for infinity."""
    if not value > 0.0:
        return 0
    if math.isinf(value):
        return BUCKETS - 1
    # Exact on every machine; a logarithm would not be.
    mantissa, exponent = math.frexp(value)
    index = (exponent - _LOWEST) * _PARTS + int((mantissa - 0.5) * 2 * _PARTS)
    return max(0, min(index, BUCKETS - 1))


def upper_end(bucket: int) -> float:
    """Return the upper bound of a bucket. The last one also holds greater values."""
    octave, part = divmod(bucket, _PARTS)
    return math.ldexp(0.5 + (part + 1) / (2 * _PARTS), octave + _LOWEST)


class Histogram(msgspec.Struct, frozen=True):
    """All measurements of one quantity.

    * `count`: the number of measurements. `worst`: the largest.
    * `breaches`: the number of values over the limit.
    * `counts`: the number of values in each bucket, ascending.
    * `waits`: for durations that exclude waiting, the time that each waited in addition.
    * `clock`: the same durations including the wait.
    """

    count: int = 0
    breaches: int = 0
    worst: float = 0.0
    counts: tuple[Bucket, ...] = ()
    waits: tuple[Bucket, ...] = ()
    clock: tuple[Bucket, ...] = ()

    def quantile(self, share: float) -> float | None:
        """Return the value that this share of the measurements does not exceed, or None if there are none."""
        found = quantile(self.counts, share)
        return None if found is None else min(found, self.worst)


def quantile(counts: Iterable[Bucket], share: float) -> float | None:
    """Return an upper bound of what this share of the counted values does not exceed, or None if there are none."""
    bins = tuple(counts)
    total = sum(one.number for one in bins)
    passed = 0
    for one in bins:
        passed += one.number
        if passed >= share * total > 0:
            return upper_end(one.bucket)
    return None


def added(
    histogram: Histogram,
    *,
    count: int,
    breaches: int,
    worst: float,
    counts: Iterable[Bucket],
    waits: Iterable[Bucket] = (),
    clock: Iterable[Bucket] = (),
) -> Histogram:
    """Return the histogram with more measurements. Invalid numbers are clamped."""
    return Histogram(
        count=storable(histogram.count + max(0, count)),
        breaches=storable(histogram.breaches + max(0, breaches)),
        worst=max(histogram.worst, worst),
        counts=_both(histogram.counts, counts),
        waits=_both(histogram.waits, waits),
        clock=_both(histogram.clock, clock),
    )


def _both(some: tuple[Bucket, ...], more: Iterable[Bucket]) -> tuple[Bucket, ...]:
    both = {one.bucket: one.number for one in some}
    for one in more:
        at = max(0, min(one.bucket, BUCKETS - 1))
        both[at] = storable(both.get(at, 0) + max(0, one.number))
    return tuple(Bucket(*item) for item in sorted(both.items()))


def with_one(histogram: Histogram, value: float, limit: float, waited: float | None = None) -> Histogram:
    """Return the histogram with one more value.

    `waited` is the time that the operation waited in addition to `value`; None: not measured.
    """
    return added(
        histogram,
        count=1,
        breaches=int(value > limit),
        worst=value,
        counts=_one(value),
        waits=() if waited is None else _one(waited),
        clock=() if waited is None else _one(value + waited),
    )


def _one(value: float) -> tuple[Bucket, ...]:
    return (Bucket(bucket_of(value), 1),)
