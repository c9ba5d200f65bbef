"""How far chance moves a mean: the standard error of paired differences.

Two states that are measured on the same samples differ by the states alone: how hard a sample is counts for both.

Promises: pure functions of numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

# A mean difference is more than chance if it exceeds so many standard errors: two in a hundred do, on either side.
ERRORS: Final = 2.0


def error_of(differences: Sequence[float]) -> float:
    """Return the standard error of the mean of these differences; 0 if it is not known."""
    count = len(differences)
    if count < 2 or not all(map(math.isfinite, differences)):
        return 0.0
    mean = math.fsum(differences) / count
    squares = math.fsum((one - mean) ** 2 for one in differences)
    return math.sqrt(squares / (count - 1) / count)
