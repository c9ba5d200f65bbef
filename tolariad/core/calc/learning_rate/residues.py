"""The number n of a range at which `factor * n` leaves the least remainder: where a curve of restarts is highest.

Promises: exact, in as many steps as Euclid's algorithm takes, however long the range is.
"""

from __future__ import annotations

import math


def least_at(factor: int, modulus: int, numbers: range) -> int:
    """Return the first n of `numbers` (not empty, in steps of 1) with the least `factor * n % modulus`."""
    count, at = len(numbers), factor * numbers.start % modulus
    least = _least(count, modulus, factor, at)
    # The first n with factor * n + at == least, modulo the modulus.
    shared = math.gcd(factor, modulus)
    rest = modulus // shared
    return numbers.start + (least - at) // shared * pow(factor // shared, -1, rest) % rest


def _least(count: int, modulus: int, factor: int, at: int) -> int:
    """Return the least of `(factor * n + at) % modulus` for n from 0 to `count` - 1."""
    factor, at = factor % modulus, at % modulus
    if factor == 0:
        return at
    if 2 * factor > modulus:
        # Backwards, the values rise by less.
        return _least(count, modulus, modulus - factor, at + factor * (count - 1))
    wraps = (factor * (count - 1) + at) // modulus
    if wraps == 0:
        return at
    # They rise until they pass the modulus: the least is the first one, or one just after that.
    return min(at, _least(wraps, factor, -modulus, at - modulus))
