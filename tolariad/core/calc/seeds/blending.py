"""Alpha: the share of a seed in the output of its slot while it is blended in.

Promises: exactly 0.0 before the first applied step, exactly 1.0 from the last one on, never falling, within [0, 1].
"""

from __future__ import annotations

import math
from typing import Final

TEMPERATURE: Final = 2.0


def alpha(applied: int, steps: int, temperature: float = TEMPERATURE) -> float:
    """Return alpha after `applied` updates of a blending phase of `steps` updates.

    The curve is the source's sigmoid, sigma(2 pi * temperature * (t - 1/2)) with t = applied / steps. It is rescaled,
    because the sigmoid itself never reaches 0 or 1. A higher temperature is steeper, as in the source.
    """
    if applied >= steps:
        return 1.0
    if applied <= 0:
        return 0.0
    steepness = math.pi * temperature
    # A sigmoid is a tanh of half its argument; this form gives exactly one half in the middle.
    share = math.tanh(steepness * (applied / steps - 0.5)) / math.tanh(steepness / 2)
    return min(1.0, max(0.0, (1.0 + share) / 2))
