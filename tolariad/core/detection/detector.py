"""The detector: two windows and two averages, asked before every update.

Promises: a pure fold over (loss, gradient norm), whoever computes it; what it calls unhealthy enters neither windows nor
averages; a verdict is given once for each shift, so that a run whose kernel does nothing about it is not flooded. A
detector made from `state()` judges every later step as this one would. It must not know: torch, steps' numbers, orders.

Costs under two microseconds a step, so it is written out where it might be shorter: a healthy step is two comparisons,
two logarithms and two averages, and every eighth refreshes a window.
"""

from __future__ import annotations

import math
from typing import Final

from tolariad.core.detection.rules import Finding, Rules, Signal, Verdict
from tolariad.core.detection.window import NO_LIMIT, REFRESH, DetectorState, Window, WindowState

# The least loss whose logarithm is taken. A loss of zero (a margin that every sample of the batch keeps) says nothing of how
# large losses are, and would rule median, spread and averages: it is healthy, and enters none of them.
_LEAST: Final = 1e-12
# Between neighbours lies, on the average, 2 / sqrt(pi) of their spread: drift of the whole run hardly enters.
_FROM_STEPS: Final = math.sqrt(math.pi) / 2.0


class Detector:
    """Judges steps. `judge` returns None where the step is healthy."""

    __slots__ = (
        "_accepted",
        "_drift_limit",
        "_fast",
        "_fast_share",
        "_in_a_row",
        "_jump",
        "_last",
        "_log_ratio",
        "_loss",
        "_noise_reach",
        "_norm",
        "_rules",
        "_slow",
        "_slow_share",
    )

    def __init__(self, rules: Rules | None = None, state: DetectorState | None = None) -> None:
        self._rules = rules = rules or Rules()
        state = state or DetectorState()
        self._loss = self._window(state.loss, rules.floor)
        self._norm = self._window(state.grad_norm, 0.0)
        self._fast, self._slow, self._last, self._jump = state.fast, state.slow, state.last, state.jump
        # How far noise alone may lift the fast average: an average weighted so has this share of one value's spread.
        share = 1.0 / rules.fast
        self._noise_reach = rules.spike_spreads * math.sqrt(share / (2.0 - share)) * _FROM_STEPS
        self._log_ratio = math.log(rules.ratio)
        self._fast_share, self._slow_share = 1.0 / rules.fast, 1.0 / rules.slow
        self._accepted = state.accepted
        self._in_a_row = state.in_a_row
        self._set_drift_limit()

    def _window(self, state: WindowState, floor: float) -> Window:
        rules = self._rules
        return Window(
            state,
            size=rules.window,
            warmup=rules.warmup,
            spreads=rules.spike_spreads,
            spread_min=rules.spread_min,
            explosion=rules.explosion,
            floor=floor,
        )

    def state(self) -> DetectorState:
        """Everything the detector knows, as a value."""
        return DetectorState(
            loss=self._loss.state(),
            grad_norm=self._norm.state(),
            fast=self._fast,
            slow=self._slow,
            last=self._last,
            jump=self._jump,
            accepted=self._accepted,
            in_a_row=self._in_a_row,
        )

    def judge(self, loss: float, grad_norm: float) -> Verdict | None:
        """The verdict on one step, before its update. A gradient norm that was not measured is 0.0 or -1.0."""
        window, norms = self._loss, self._norm
        # Every comparison with a value that is not a number is false, so such a step is never healthy.
        if not (-NO_LIMIT <= loss <= window.limit and -1.0 <= grad_norm <= norms.limit):
            return self._unhealthy(loss, grad_norm)
        self._in_a_row = 0
        if window.is_log:
            if loss >= _LEAST:
                level = math.log(loss)
            elif loss >= 0.0:
                self._take_norm(grad_norm)
                return None
            else:
                level = loss
                self._go_linear()
        else:
            level = loss
        fresh = window.fresh
        fresh.append(level)
        if len(fresh) == REFRESH:
            window.refresh()
            self._set_drift_limit()
        if grad_norm > 0.0:
            fresh = norms.fresh
            fresh.append(math.log(grad_norm))
            if len(fresh) == REFRESH:
                norms.refresh()
        # Both averages follow; the fast one may not leave the slow one upwards.
        accepted = self._accepted = self._accepted + 1
        if accepted == 1:
            self._fast = self._slow = self._last = level
            self._jump = 0.0
            return None
        fast = self._fast = self._fast + (level - self._fast) * self._fast_share
        # In the beginning the plain mean, else the first value would weigh for hundreds of steps.
        share = self._slow_share
        if accepted * share < 1.0:
            share = 1.0 / accepted
        slow = self._slow = self._slow + (level - self._slow) * share
        self._jump += (abs(level - self._last) - self._jump) * share
        self._last = level
        if fast - slow <= self._drift_limit or (self._loss.is_log and math.exp(fast) <= self._loss.floor):
            return None
        baseline = math.exp(slow) if self._loss.is_log else slow
        limit = math.exp(slow + self._drift_limit) if self._loss.is_log else slow + self._drift_limit
        # Once a shift: if nobody acts on it, the new level is the level.
        self._slow = fast
        return Verdict(Finding.DIVERGENCE, Signal.LOSS, loss, baseline, limit, explosion=self._loss.explosion_limit)

    def _take_norm(self, grad_norm: float) -> None:
        """As `judge` does where it is written out."""
        if grad_norm > 0.0:
            fresh = self._norm.fresh
            fresh.append(math.log(grad_norm))
            if len(fresh) == REFRESH:
                self._norm.refresh()

    def _unhealthy(self, loss: float, grad_norm: float) -> Verdict:
        """Which rule was broken, the gravest first."""
        self._in_a_row += 1
        run_of = self._in_a_row
        window, norms = self._loss, self._norm
        over_loss = not -NO_LIMIT <= loss <= window.limit
        signal, value = (Signal.LOSS, loss) if over_loss else (Signal.GRAD_NORM, grad_norm)
        of = window if over_loss else norms
        finding = Finding.SPIKE
        limit = of.limit
        if not -NO_LIMIT <= value <= NO_LIMIT:
            finding = Finding.NON_FINITE
        elif run_of > 1 and over_loss and loss > window.explosion_limit:
            # One batch alone may be poisoned, and its update is not made; the next one shows whether it is the weights.
            finding, limit = Finding.EXPLOSION, window.explosion_limit
        baseline, explosion = of.baseline, window.explosion_limit
        if run_of > self._rules.spikes_in_a_row:
            finding = Finding.SUSTAINED
            self._begin_again()
        elif finding is Finding.SPIKE and not over_loss and run_of > self._rules.norms_in_a_row:
            return self._shifted(loss, grad_norm, run_of)
        return Verdict(finding, signal, value, baseline, limit, run_of, explosion)

    def _shifted(self, loss: float, grad_norm: float, run_of: int) -> Verdict:
        """Nothing is wrong with the loss: the step is a healthy one, and what gradient norms were says no more what they are."""
        baseline, limit = self._norm.baseline, self._norm.limit
        self._norm.forget()
        graver = self.judge(loss, grad_norm)
        return graver or Verdict(Finding.SHIFT, Signal.GRAD_NORM, grad_norm, baseline, limit, run_of)

    def _begin_again(self) -> None:
        """So many in a row are no spikes: the windows know nothing of where the run is now."""
        self._loss.forget()
        self._norm.forget()
        self._accepted = self._in_a_row = 0
        self._set_drift_limit()

    def _go_linear(self) -> None:
        self._loss.go_linear()
        if self._accepted:
            self._fast, self._slow, self._last = math.exp(self._fast), math.exp(self._slow), math.exp(self._last)
            self._jump *= abs(self._slow)
        self._set_drift_limit()

    def _set_drift_limit(self) -> None:
        """How far apart the averages may be: the ratio, or what the noise alone may do to the fast one."""
        window, rules = self._loss, self._rules
        if len(window.ordered) < rules.warmup:
            self._drift_limit = NO_LIMIT
            return
        noise = self._noise_reach * self._jump
        ratio = self._log_ratio if window.is_log else (rules.ratio - 1.0) * abs(window.median)
        self._drift_limit = ratio if ratio > noise else noise  # noqa: FURB136
