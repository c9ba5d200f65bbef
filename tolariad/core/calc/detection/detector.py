"""The detector: the course of the loss and the envelope of the gradient norm, consulted before every update.

A step is compared with the run's own noise, rare batches, swings and learning rates. The detector calls for a rollback
only if the value is far above all of them. Everything less is skipped or recorded.

Promises: a pure fold over (loss, gradient norm, learning rate). A detector made from `state()` returns the same verdict
on every later step as this one. A finding that nobody acts on is returned once; after that the new level is the normal
one.

A step costs about one microsecond. That is why `judge` repeats code that a helper could share. A healthy step is two
comparisons and two appends, and every eighth one refreshes an envelope.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from msgspec import Struct, convert, field

from tolariad.core.calc.detection.course import WARM, Course, CourseState
from tolariad.core.calc.detection.envelope import REFRESH, Envelope, EnvelopeState, exp
from tolariad.core.calc.detection.rules import BEYOND, NO_LIMIT, SPIKE_NORM, SPREADS, Finding, Signal, Verdict

# Limits stay constant for this many unhealthy steps in a row: the first value of a fault must not hide its second.
_STILL: Final = 3
# At most this many steps in a row are skipped for a high gradient norm alone. No update came between them and each had
# other data, so the weights are the cause and not the batch. If the loss has not changed, this is where learning
# begins.
_NORMS_IN_A_ROW: Final = 4
_NOT_FINITE_IN_A_ROW: Final = 8
_SPIKE_NORM: Final = math.log(SPIKE_NORM)


class DetectorState(Struct, forbid_unknown_fields=True):
    """The detector's whole state, part of every checkpoint.

    * `row`: the number of unhealthy steps in a row.
    * `exploded`: the number of these, in a row, that were above the explosion limit.
    * `not_finite`: the number of steps in a row that were not finite.
    """

    course: CourseState = field(default_factory=CourseState)
    norms: EnvelopeState = field(default_factory=EnvelopeState)
    row: int = 0
    exploded: int = 0
    not_finite: int = 0


class Detector:
    """Judges steps. `judge` returns None if the step is healthy.

    `unit`: the unit of a loss that can have either sign. A lasting rise by less than that never calls for a rollback.
    Without a unit such a loss never does: a rise from -0.01 to 5 may be a success or a fault.
    """

    # `_losses` and `_fresh_norms`: the values since the last refresh, of the course and of `_norms`.
    __slots__ = ("_course", "_exploded", "_fresh_norms", "_losses", "_norm_limit", "_norms", "_not_finite", "_row")

    def __init__(self, state: DetectorState | None = None, *, unit: float | None = None) -> None:
        state = state or DetectorState()
        self._norms = convert(state.norms, Envelope, from_attributes=True)
        course = convert(state.course, Course, from_attributes=True)
        self._course = replace(course, norms=self._norms, unit=unit)
        self._losses, self._fresh_norms = self._course.fresh, self._norms.fresh
        self._row, self._exploded, self._not_finite = state.row, state.exploded, state.not_finite
        self._set_norm_limit()

    def state(self) -> DetectorState:
        """Return a copy of the state."""
        course = convert(self._course, CourseState, from_attributes=True)
        norms = convert(self._norms, EnvelopeState, from_attributes=True)
        return DetectorState(course, norms, self._row, self._exploded, self._not_finite)

    @property
    def typical_norm(self) -> float | None:
        """The median of the last gradient norms; None if none is known yet."""
        norms = self._norms
        if not norms.count and not norms.fresh:
            return None
        level = norms.level_now()
        return exp(level) if norms.is_log else level

    @property
    def began(self) -> int:
        """How many updates before the newest finding its rise began. Zero is the judged step itself."""
        return self._course.began

    def judge(self, loss: float, grad_norm: float, rate: float = 0.0) -> Verdict | None:
        """Return the verdict on a step before its update. `grad_norm` -1.0: not measured. `rate`: the learning rate."""
        course = self._course
        # Every comparison with a value that is not a number is false, so such a step is never healthy.
        if not (course.least <= loss <= course.limit and -1.0 <= grad_norm <= self._norm_limit):
            return self._unusual(loss, grad_norm, rate)
        if self._row:
            self._row = self._exploded = self._not_finite = 0
        fresh = self._losses
        fresh.append(loss)
        if grad_norm > 0.0:
            norms = self._fresh_norms
            norms.append(grad_norm)
            if len(norms) >= REFRESH:
                self._refresh_norms()
        elif grad_norm == 0.0:
            course.saw_no_gradient()
        return course.refresh(rate) if len(fresh) >= REFRESH else None

    def _unusual(self, loss: float, grad_norm: float, rate: float) -> Verdict | None:
        """Return the verdict on an unhealthy step, or on a loss that is not positive."""
        course = self._course
        may_restart = course.limit < loss <= NO_LIMIT and -1.0 <= grad_norm <= self._norm_limit
        if may_restart and course.restarts(loss, rate):
            return self._healthy(loss, grad_norm, rate)
        if -NO_LIMIT <= loss < course.least:
            if loss < 0.0:
                course.go_linear()
                return self.judge(loss, grad_norm, rate)
            if -1.0 <= grad_norm <= self._norm_limit:
                # A loss of zero (a margin loss that every sample satisfies) tells nothing about the size of losses.
                return self._healthy(loss, grad_norm, rate)
        self._row += 1
        if not (-NO_LIMIT <= loss <= NO_LIMIT and -1.0 <= grad_norm <= NO_LIMIT):
            return self._found_not_finite(loss, grad_norm)
        found = self._found_high(loss, grad_norm)
        self._take(loss, grad_norm)
        if self._row > _NORMS_IN_A_ROW and self._norms.fresh:
            self._refresh_norms()
        if self._row > _STILL and course.fresh:
            return course.refresh(rate) or found
        return found

    def _healthy(self, loss: float, grad_norm: float, rate: float) -> Verdict | None:
        """Take in a healthy step, as `judge` does inline."""
        self._row = self._exploded = self._not_finite = 0
        self._take(loss, grad_norm)
        if len(self._norms.fresh) >= REFRESH:
            self._refresh_norms()
        return self._course.refresh(rate) if len(self._course.fresh) >= REFRESH else None

    def _take(self, loss: float, grad_norm: float) -> None:
        """Add the values that are finite to the envelopes."""
        if self._course.least <= loss <= NO_LIMIT:
            self._course.fresh.append(loss)
        if 0.0 < grad_norm <= NO_LIMIT:
            self._norms.fresh.append(grad_norm)
        elif grad_norm == 0.0:
            self._course.saw_no_gradient()

    def _found_not_finite(self, loss: float, grad_norm: float) -> Verdict:
        """Return the verdict on a step that is not finite. Its values enter no envelope."""
        self._not_finite += 1
        finding = Finding.NON_FINITE
        if self._not_finite > _NOT_FINITE_IN_A_ROW:
            # If nobody acts on it, it is reported again after as many such steps.
            finding, self._not_finite = Finding.SUSTAINED, 0
        if -NO_LIMIT <= loss <= NO_LIMIT:
            return self._verdict(finding, Signal.GRAD_NORM, grad_norm, self._norms, self._norm_limit)
        return self._verdict(finding, Signal.LOSS, loss, self._course.losses, self._course.limit)

    def _found_high(self, loss: float, grad_norm: float) -> Verdict:
        """Return the verdict on a step whose loss or gradient norm is above its limit."""
        course = self._course
        explosion = course.explosion_limit()
        self._exploded = self._exploded + 1 if loss > explosion else 0
        if loss > course.limit:
            if self._exploded >= course.explodes_in and course.may_go_back:
                return self._verdict(Finding.EXPLOSION, Signal.LOSS, loss, course.losses, explosion)
            return self._verdict(Finding.SPIKE, Signal.LOSS, loss, course.losses, course.limit)
        finding = Finding.SHIFT if self._row > _NORMS_IN_A_ROW else Finding.SPIKE
        found = self._verdict(finding, Signal.GRAD_NORM, grad_norm, self._norms, self._norm_limit)
        if finding is Finding.SHIFT:
            self._norms.admit(grad_norm)
        return found

    def _verdict(self, finding: Finding, signal: Signal, value: float, of: Envelope, limit: float) -> Verdict:
        """Return a verdict on this step. `of`: the envelope of the signal."""
        self._course.found_in_a_row(self._row)
        course, level = self._course, 0.0
        if of.count:
            level = exp(of.level) if of.is_log else of.level
        elif of is course.losses and course.ceiling < NO_LIMIT:
            level = exp(course.ceiling) / BEYOND
        return Verdict(finding, signal, value, level, limit, self._row, self._course.explosion_limit())

    def _refresh_norms(self) -> None:
        self._norms.refresh()
        self._course.saw_gradients()
        self._set_norm_limit()

    def _set_norm_limit(self) -> None:
        """Set the gradient norm above which a step is skipped."""
        norms = self._norms
        if norms.count < WARM:
            self._norm_limit = NO_LIMIT
            return
        spread = norms.spread
        reach = max(_SPIKE_NORM, SPREADS * spread, 1.15 * norms.excess + spread)
        norms.limit_at(reach)
        self._norm_limit = exp(norms.level + reach)
