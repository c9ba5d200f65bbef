"""The words of detection: its limits, what it finds, what it calls for; and the two rules that need no window.

Promises: values and pure functions. It must not know: who measured, or what is done about a verdict.
"""

from __future__ import annotations

from enum import Enum

from msgspec import Struct


class Signal(Enum):
    """What was measured."""

    LOSS = "loss"
    GRAD_NORM = "grad_norm"
    ACCURACY = "accuracy"
    STEP_TIME = "step_time"


class Finding(Enum):
    """What is wrong with it."""

    NON_FINITE = "non_finite"
    SPIKE = "spike"
    SUSTAINED = "sustained"
    SHIFT = "shift"
    RISE = "rise"
    # Of journals that older versions wrote: it is not found any more.
    DIVERGENCE = "divergence"
    EXPLOSION = "explosion"
    COLLAPSE = "collapse"
    STALL = "stall"


class Action(Enum):
    """What the finding calls for."""

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
    Finding.DIVERGENCE: Action.ROLLBACK,
    Finding.EXPLOSION: Action.EMERGENCY,
    Finding.COLLAPSE: Action.ROLLBACK,
    Finding.STALL: Action.RECORD,
}


class Verdict(Struct, frozen=True):
    """A finding: the value that was measured, what was usual before it, the limit it went over.

    For SUSTAINED and RISE of a loss `value` is the median of the last 32. `run_of` counts the steps in a row, this one
    included, that were found unhealthy; for SUSTAINED and RISE, how many of the last 32 already lay high. `explosion`: where
    the loss would have exploded; 0 if that is not known.
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
        """What it calls for."""
        return CALLS_FOR[self.finding]


class Rules(Struct, frozen=True, kw_only=True):
    """Constants. A factor is of the level; spreads are robust standard deviations of the signal's own noise.

    `spike`, `spike_norm`: a step is skipped if its loss (its gradient norm) is so many times the level, and `spreads` above it,
    and above what the last 4096 steps now and then reached. `explosion`: so many times the level is more than a spike.
    `cold`: the same for the first 256 steps, in terms of the first eight.
    `rise`: a lasting rise by this factor is recorded. `jump`, `slow`, `young`: by this factor it is gone back for, if it came
    within three blocks (by `edge` at least) or the run is quiet; if it came slowly; before step 256. `swings`: it must also be so
    many times (on the scale of factors: to this power) the largest rise that the run has completed by itself.
    `signed`, `signed_young`: for losses of either sign, in spreads. `floor`: below this share of the loss that the run began
    with nothing is too high.
    """

    spreads: float = 7.0
    spike: float = 2.0
    spike_norm: float = 5.0
    explosion: float = 15.0
    cold: float = 24.0
    rise: float = 2.5
    jump: float = 4.0
    edge: float = 3.5
    slow: float = 5.0
    young: float = 8.0
    swings: float = 1.5
    signed: float = 24.0
    signed_young: float = 64.0
    floor: float = 0.1


def accuracy_collapsed(accuracy: float, average: float | None, chance: float | None = None) -> Verdict | None:
    """One validation: below half of the accuracy's moving average, or at chance where it had been well above.

    `accuracy` and `average` are fractions; `chance` is 1 / classes where that is known. Well above is twice that, or halfway
    from there to 1 (of two classes nothing has twice chance, and half of any average is less than chance). An average that
    never rose so far, or none at all, cannot fall to chance. (Fact sheet B.5; no source gives a number.)
    """
    if average is None:
        return None
    limit = 0.5 * average
    if chance is not None and average > min(2.0 * chance, 0.5 + 0.5 * chance):
        limit = max(limit, 1.1 * chance)
    # Written so that an accuracy which is not a number is a collapse, too.
    if accuracy >= limit:
        return None
    return Verdict(Finding.COLLAPSE, Signal.ACCURACY, accuracy, average, limit)


def is_stalled(step_s: float, typical_s: float) -> Verdict | None:
    """One step that took more than twenty times as long as others do, and more than a second."""
    limit = max(1.0, 20.0 * typical_s)
    return Verdict(Finding.STALL, Signal.STEP_TIME, step_s, typical_s, limit) if step_s > limit else None
