"""The detector: the course of the loss and the envelope of the gradient norm, asked before every update.

A step is compared with what this run itself has done: its noise, its rare batches, its swings, its learning rates. The run
is told to go back only if it left all of them far behind; everything less is skipped or recorded.

Promises: a pure fold over (loss, gradient norm, learning rate), whoever computes it. A detector made from `state()` judges
every later step as this one would. A finding that nobody acts on is given once: from then on the new level is the level.
It must not know: torch, numbers of steps, orders.

It costs about one microsecond a step, so it is written out where it might be shorter: a healthy step is two comparisons and
two appended values; every eighth one refreshes an envelope.
"""

from __future__ import annotations

import math
from typing import Final

from msgspec import Struct

from tolariad.core.detection.course import WARM, Course, CourseState
from tolariad.core.detection.envelope import NO_LIMIT, REFRESH, Envelope, EnvelopeState, exp
from tolariad.core.detection.rules import Finding, Rules, Signal, Verdict

# Limits stand still for so many unhealthy steps in a row: the first value of a fault must not hide its second.
_STILL: Final = 3
# So many steps with a high gradient norm alone are skipped, no more. Nothing was updated between them and each had other
# data, so it is the place and not the batch; with a loss that is as it was, learning sets in there.
_NORMS_IN_A_ROW: Final = 4
_NOT_FINITE_IN_A_ROW: Final = 8


class DetectorState(Struct, frozen=True, forbid_unknown_fields=True):
    """Everything a detector knows: part of every checkpoint.

    `row`: unhealthy steps in a row; `exploded`: of them, those in a row above the explosion limit; `not_finite`: those that
    were not finite.
    """

    course: CourseState = CourseState()
    norms: EnvelopeState = EnvelopeState()
    row: int = 0
    exploded: int = 0
    not_finite: int = 0


class Detector:
    """Judges steps. `judge` returns None if the step is healthy.

    `unit`: what a loss of either sign is measured in: a lasting rise by less is nothing to go back for. Without one, such a
    loss is never gone back for: nothing says whether a rise from -0.01 to 5 is a success or a fault.
    """

    __slots__ = ("_course", "_exploded", "_norm_limit", "_norms", "_not_finite", "_row", "_rules", "_spike_norm")

    def __init__(
        self, rules: Rules | None = None, state: DetectorState | None = None, *, unit: float | None = None
    ) -> None:
        self._rules = rules = rules or Rules()
        state = state or DetectorState()
        self._norms = Envelope(state.norms)
        self._course = Course(state.course, self._norms, rules, unit)
        self._row, self._exploded, self._not_finite = state.row, state.exploded, state.not_finite
        self._spike_norm = math.log(rules.spike_norm)
        self._set_norm_limit()

    def state(self) -> DetectorState:
        """Everything the detector knows, as a value."""
        return DetectorState(self._course.state(), self._norms.state(), self._row, self._exploded, self._not_finite)

    def judge(self, loss: float, grad_norm: float, rate: float = 0.0) -> Verdict | None:
        """The verdict on one step, before its update. A gradient norm that was not measured is -1.0; `rate`: learning rate."""
        course = self._course
        # Every comparison with a value that is not a number is false, so such a step is never healthy.
        if not (course.least <= loss <= course.limit and -1.0 <= grad_norm <= self._norm_limit):
            return self._unusual(loss, grad_norm, rate)
        if self._row:
            self._row = self._exploded = self._not_finite = 0
        course.rate = rate
        fresh = course.fresh
        fresh.append(loss)
        if grad_norm > 0.0:
            norms = self._norms.fresh
            norms.append(grad_norm)
            if len(norms) >= REFRESH:
                self._refresh_norms()
        elif grad_norm == 0.0:
            course.dead += 1
        return course.refresh() if len(fresh) >= REFRESH else None

    def _unusual(self, loss: float, grad_norm: float, rate: float) -> Verdict | None:
        """The verdict on a loss that is not positive, or on an unhealthy step."""
        course = self._course
        course.rate = rate
        if course.limit < loss <= NO_LIMIT and -1.0 <= grad_norm <= self._norm_limit and course.restarts(loss):
            return self._healthy(loss, grad_norm)
        if -NO_LIMIT <= loss < course.least:
            if loss < 0.0:
                course.go_linear()
                return self.judge(loss, grad_norm, rate)
            if -1.0 <= grad_norm <= self._norm_limit:
                # A loss of zero (a margin that every sample keeps) says nothing of how large losses are.
                return self._healthy(loss, grad_norm)
        self._row += 1
        if not (-NO_LIMIT <= loss <= NO_LIMIT and -1.0 <= grad_norm <= NO_LIMIT):
            return self._found_not_finite(loss, grad_norm)
        found = self._found_high(loss, grad_norm)
        self._take(loss, grad_norm)
        if self._row > _NORMS_IN_A_ROW and self._norms.fresh:
            self._refresh_norms()
        if self._row > _STILL and course.fresh:
            return course.refresh() or found
        return found

    def _healthy(self, loss: float, grad_norm: float) -> Verdict | None:
        """As `judge` does where it is written out."""
        self._row = self._exploded = self._not_finite = 0
        self._take(loss, grad_norm)
        if len(self._norms.fresh) >= REFRESH:
            self._refresh_norms()
        return self._course.refresh() if len(self._course.fresh) >= REFRESH else None

    def _take(self, loss: float, grad_norm: float) -> None:
        """Let into the envelopes whatever is finite."""
        if self._course.least <= loss <= NO_LIMIT:
            self._course.fresh.append(loss)
        if 0.0 < grad_norm <= NO_LIMIT:
            self._norms.fresh.append(grad_norm)
        elif grad_norm == 0.0:
            self._course.dead += 1

    def _found_not_finite(self, loss: float, grad_norm: float) -> Verdict:
        """Of such a step nothing enters an envelope."""
        self._not_finite += 1
        finding = Finding.NON_FINITE
        if self._not_finite > _NOT_FINITE_IN_A_ROW:
            # If nobody acts on it, it is said again when the row is as long again.
            finding, self._not_finite = Finding.SUSTAINED, 0
        if -NO_LIMIT <= loss <= NO_LIMIT:
            return self._verdict(finding, Signal.GRAD_NORM, grad_norm, self._norms, self._norm_limit)
        return self._verdict(finding, Signal.LOSS, loss, self._course.losses, self._course.limit)

    def _found_high(self, loss: float, grad_norm: float) -> Verdict:
        """One of the two is above its limit."""
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
        """`of`: the envelope of the signal."""
        level = 0.0 if not of.count else exp(of.level) if of.is_log else of.level
        return Verdict(finding, signal, value, level, limit, self._row, self._course.explosion_limit())

    def _refresh_norms(self) -> None:
        self._norms.refresh()
        self._course.dead = 0
        self._set_norm_limit()

    def _set_norm_limit(self) -> None:
        """Above it a step is skipped."""
        norms = self._norms
        if norms.count < WARM:
            self._norm_limit = NO_LIMIT
            return
        spread = norms.spread
        norms.reach = max(self._spike_norm, self._rules.spreads * spread, 1.15 * norms.excess + spread)
        self._norm_limit = exp(norms.level + norms.reach)
