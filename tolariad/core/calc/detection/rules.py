"""The detector's findings, their actions and its constants; and the two rules that need no history.

Promises: values and pure functions.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from msgspec import Struct


class Signal(Enum):
    """The quantity that was measured."""

    LOSS = "loss"
    GRAD_NORM = "grad_norm"
    ACCURACY = "accuracy"
    STEP_TIME = "step_time"


class Finding(Enum):
    """The fault of the value."""

    NON_FINITE = "non_finite"
    SPIKE = "spike"
    SUSTAINED = "sustained"
    SHIFT = "shift"
    RISE = "rise"
    EXPLAINED = "explained"
    LOST = "lost"
    # Written by older versions only; no rule returns it any more.
    DIVERGENCE = "divergence"
    EXPLOSION = "explosion"
    COLLAPSE = "collapse"
    STALL = "stall"


class Action(Enum):
    """The action that a finding calls for."""

    SKIP = "skip"
    ROLLBACK = "rollback"
    EMERGENCY = "emergency"
    RECORD = "record"


CALLS_FOR = {
    Finding.NON_FINITE: Action.SKIP,
    Finding.SPIKE: Action.SKIP,
    Finding.SUSTAINED: Action.ROLLBACK,
    Finding.SHIFT: Action.RECORD,
    Finding.RISE: Action.RECORD,
    Finding.EXPLAINED: Action.RECORD,
    Finding.LOST: Action.RECORD,
    Finding.DIVERGENCE: Action.ROLLBACK,
    Finding.EXPLOSION: Action.EMERGENCY,
    Finding.COLLAPSE: Action.ROLLBACK,
    Finding.STALL: Action.RECORD,
}

_WATCHED: Final = frozenset({Finding.SUSTAINED, Finding.EXPLOSION, Finding.EXPLAINED, Finding.LOST})
# So many high losses in a row are no single batches, nor are so many that are not finite. A small network may learn
# wrong ones away before the level tells, and a damaged weight that only some batches use leaves others healthy.
_BURST: Final = 4
# A gradient norm that leapt by this factor while the loss did not is no norm of this loss: a scale is wrong. Nothing
# may rise after that, but Adam's second moments are too large for a thousand steps, and the run learns nothing.
_MISSCALED: Final = 100.0


class Verdict(Struct, frozen=True):
    """A finding: the measured value, the usual one before it, and the limit that was exceeded.

    For SUSTAINED and RISE of a loss, `value` is the median of the last 32. `run_of` counts the unhealthy steps in a
    row, this one included; for SUSTAINED and RISE, how many of the last 32 were high. `explosion`: the loss above which
    the detector finds an explosion; 0 if that is not known.
    """

    finding: Finding
    signal: Signal
    value: float
    baseline: float
    limit: float
    run_of: int = 1
    explosion: float = 0.0

    @property
    def action(self) -> Action:
        """Return the action that the finding calls for."""
        return CALLS_FOR[self.finding]


def is_watched(verdict: Verdict) -> bool:
    """Return whether an insured run pins the state from before this finding and watches what follows."""
    match verdict.finding:
        case Finding.SPIKE:
            return verdict.signal is Signal.LOSS and verdict.run_of >= _BURST
        case Finding.NON_FINITE:
            return verdict.run_of >= _BURST
        case Finding.SHIFT:
            return 0.0 < _MISSCALED * verdict.baseline < verdict.value <= NO_LIMIT
    return verdict.finding in _WATCHED


# The largest float, not infinity: `value <= limit` must be false for an infinite value.
NO_LIMIT: Final = 1.7976931348623157e308
# The smallest value whose logarithm is taken.
LEAST: Final = 1e-12
# Constants of the detector. Factors refer to the level; spreads are robust standard deviations of the signal's own
# noise. A step is skipped if its loss (its gradient norm) exceeds this factor, SPREADS, and the excesses of the last
# 4096 steps.
SPREADS: Final = 7.0
SPIKE: Final = 2.0
SPIKE_NORM: Final = 5.0
# The factor beyond which a value is more than a spike.
EXPLOSION: Final = 15.0
# The factor for the first 256 steps, relative to the first eight.
COLD: Final = 24.0
# After an announced stage any level is healthy, up to this factor above the highest level that the run has had.
BEYOND: Final = 1000.0
# A lasting rise by this factor is recorded. A larger one calls for a rollback.
RISE: Final = 2.5
# The factor if the rise came within three blocks (by EDGE at least) or the run is quiet.
JUMP: Final = 4.0
EDGE: Final = 3.5
# The factor if it came slowly, and before step 256.
SLOW: Final = 5.0
YOUNG: Final = 8.0
# The rise must also exceed the largest one that the run completed by itself, by this factor (on a logarithmic scale: to
# this power).
SWINGS: Final = 1.5
# The same for losses of either sign, in spreads.
SIGNED: Final = 24.0
SIGNED_YOUNG: Final = 64.0
# No loss below this share of the first losses is too high.
FLOOR: Final = 0.1
# A loss is lost if it rose by this factor, and by this share of the logarithmic way that it had come down, for so many
# refreshes in a row.
LOST: Final = 1.3
LOST_SHARE: Final = 0.25
LOST_SPREADS: Final = 1.5
LOST_LOOKS: Final = 8


def accuracy_collapsed(accuracy: float, average: float | None, chance: float | None = None) -> Verdict | None:
    """Check one validation: did the accuracy fall below half of its average, or to chance after it had been well above?

    `accuracy` and `average` are fractions. `chance` is 1 / classes, or None if that is not known. "Well above" is twice
    chance, or halfway from chance to 1 if that is less: with two classes nothing reaches twice chance. An average that
    never rose so far, or None, cannot fall to chance. (Fact sheet B.5; no source gives a number.)
    """
    if average is None:
        return None
    limit = 0.5 * average
    if chance is not None and average > min(2.0 * chance, 0.5 + 0.5 * chance):
        limit = max(limit, 1.1 * chance)
    # Written so that an accuracy of NaN is a collapse, too.
    if accuracy >= limit:
        return None
    return Verdict(Finding.COLLAPSE, Signal.ACCURACY, accuracy, average, limit)


def is_stalled(step_s: float, typical_s: float) -> Verdict | None:
    """Check whether one step took more than twenty times as long as others, and more than a second."""
    limit = max(1.0, 20.0 * typical_s)
    return Verdict(Finding.STALL, Signal.STEP_TIME, step_s, typical_s, limit) if step_s > limit else None
