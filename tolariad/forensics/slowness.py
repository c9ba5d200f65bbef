"""Since which step a run is slower, from the times at which its steps were recorded.

Promises: nothing is said of a difference that is within the noise of the run, nor of one that did not last. Pauses,
restarts and validations are no steps: a time far above the usual one is left out.
"""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Sequence
from typing import Final, NamedTuple

from tolariad.core.calc.steps.table import step_row
from tolariad.forensics.timeline import UNREADABLE

STEPS_MIN: Final = 100
# From this factor on a run counts as slower.
FACTOR_MIN: Final = 1.03
_BLOCKS: Final = 200
_STEPS_A_BLOCK_MIN: Final = 10
# A time of so many medians is of no step alone.
_APART: Final = 5.0
# The shift must be so many standard errors of the blocks' medians.
_ERRORS: Final = 6.0
# Blocks on each side at least.
_SIDE_MIN: Final = 4


class Slower(NamedTuple):
    """From step `step` on the median step takes `after_s` instead of `before_s` seconds."""

    step: int
    before_s: float
    after_s: float


class StepTimes:
    """The steps of a run in their order, and when each was recorded."""

    def __init__(self) -> None:
        self._steps: list[int] = []
        self._walls: list[int] = []

    def take(self, event: bytes) -> None:
        """Add a journaled step. One that is not of its type has no time to compare."""
        with contextlib.suppress(*UNREADABLE):
            row = step_row(event) or ()
            self._steps.append(int(row[0]))
            self._walls.append(int(row[2]))

    def slower(self) -> Slower | None:
        """Return where the run got slower for good, or None."""
        return slower_since(self._steps, self._walls)


def slower_since(steps: Sequence[float], walls: Sequence[float]) -> Slower | None:
    """Return where the run got slower for good, or None. `walls`: when each step was recorded, in ns."""
    times = [(int(steps[n]), (walls[n] - walls[n - 1]) / 1e9) for n in range(1, len(steps))]
    usual = statistics.median([time for _, time in times]) if times else 0.0
    times = [(step, time) for step, time in times if 0 < time < _APART * usual]
    if len(times) < STEPS_MIN:
        return None
    size = max(_STEPS_A_BLOCK_MIN, -(-len(times) // _BLOCKS))
    blocks = [times[start : start + size] for start in range(0, len(times) - size + 1, size)]
    logs = [math.log(statistics.median([time for _, time in block])) for block in blocks]
    at = _split(logs)
    if at is None:
        return None
    before, after = (math.exp(statistics.median(part)) for part in (logs[:at], logs[at:]))
    if after < FACTOR_MIN * before:
        return None
    return Slower(_first_slow(blocks[at - 1] + blocks[at], math.sqrt(before * after)), before, after)


def _split(logs: Sequence[float]) -> int | None:
    """Return the index that best divides the values into lower ones before it and higher ones from it on."""
    best, found = 0.0, None
    for at in range(_SIDE_MIN, len(logs) - _SIDE_MIN + 1):
        before, after = logs[:at], logs[at:]
        shift = statistics.fmean(after) - statistics.fmean(before)
        score = shift * math.sqrt(at * (len(logs) - at) / len(logs))
        # Both sides together tell the noise: a few blocks alone may be alike by chance.
        if score > best and score > _ERRORS * _noise(before, after):
            best, found = score, at
    return found


def _noise(before: Sequence[float], after: Sequence[float]) -> float:
    """Return the standard deviation of the blocks around the mean of their side."""
    squares = sum(statistics.pvariance(part) * len(part) for part in (before, after))
    return math.sqrt(squares / (len(before) + len(after) - 2))


def _first_slow(times: Sequence[tuple[int, float]], limit: float) -> int:
    """Return the first step of five from which on the median is above the limit."""
    for at in range(len(times) - 4):
        if statistics.median([time for _, time in times[at : at + 5]]) > limit and times[at][1] > limit:
            return times[at][0]
    return times[len(times) // 2][0]
