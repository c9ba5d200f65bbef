"""How well one ranking of units agrees with another, and whether a ranking is stable.

Promises: pure functions. Spearman's coefficient with ranks shared among equal values, as SciPy's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Return Spearman's rank correlation, -1 to 1; 0.0 if one of both says nothing because all of it is equal.

    Raises ValueError for sequences of different lengths, for fewer than two values, and for NaN.
    """
    if len(one) != len(other) or len(one) < 2:
        raise ValueError(f"a rank correlation needs two or more pairs, got {len(one)} and {len(other)} values")
    if any(math.isnan(value) for value in (*one, *other)):
        raise ValueError("a rank correlation needs numbers, got NaN")
    a, b = _ranks(one), _ranks(other)
    middle = (len(one) - 1) / 2
    both = math.fsum((x - middle) * (y - middle) for x, y in zip(a, b, strict=True))
    spread = math.fsum((x - middle) ** 2 for x in a) * math.fsum((y - middle) ** 2 for y in b)
    return both / math.sqrt(spread) if spread else 0.0


def _ranks(values: Sequence[float]) -> list[float]:
    """Return the rank of each value from 0; equal values share the mean of theirs."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end < len(order) and values[order[end]] == values[order[start]]:
            end += 1
        for at in order[start:end]:
            ranks[at] = (start + end - 1) / 2
        start = end
    return ranks
