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
    Finding.DIVERGENCE: Action.ROLLBACK,
    Finding.EXPLOSION: Action.EMERGENCY,
    Finding.COLLAPSE: Action.ROLLBACK,
    Finding.STALL: Action.RECORD,
}


class Verdict(Struct, frozen=True):
    """A finding: the value that was measured, the median of the healthy ones before it, the limit it went over.

    `run_of` counts the steps in a row, this one included, that were found unhealthy. `explosion`: where the loss would have
    exploded; 0 where that is not known.
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
    """Limits. Spreads are robust standard deviations (1.4826 times the median absolute deviation).

    `window`: healthy steps that are looked back on; nothing but non-finite values is found before `warmup` of them.
    `spread_min`: what a spread counts at least, as a share of the value: a loss that hardly moves may move that much.
    `norms_in_a_row`: so many steps with a high gradient norm alone are skipped, no more. Nothing was updated between them and
    each had other data, so it is the place and not the batch; and with a loss that is as it was, the place is where learning
    sets in behind a plateau (a deep network's norm rises by ten there).
    `fast`, `slow`: time constants of the two averages, in steps; `ratio`: how far the fast one may rise above the slow.
    `floor`: a loss under this share of what the run began with is never too high. One that has been learnt by heart lies
    orders of magnitude below, and rises by as many now and then, to where it is still nothing to go back for.
    """

    window: int = 128
    warmup: int = 64
    spike_spreads: float = 8.0
    spread_min: float = 0.02
    spikes_in_a_row: int = 32
    norms_in_a_row: int = 4
    fast: float = 8.0
    slow: float = 256.0
    ratio: float = 1.25
    explosion: float = 15.0
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
