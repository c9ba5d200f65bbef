"""Conservative mode and the breaker of learning-rate violations, as the journal knows them: slice, apply table, decisions.

Invariants: the mode is entered and left by events only; what is counted starts again with each. While it is on it
restrains (core.stability.Restraint), it never changes a weight, a rate or the order of data.
It must not know: what a violation was, what took too long, or who restrains themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from tolariad.core import stability as rules
from tolariad.core.base import ApplyTable, Cause, storable
from tolariad.core.decision import Decision
from tolariad.core.health import budget_words as budgets
from tolariad.core.health import conservative_words as words
from tolariad.core.rates import words as lr
from tolariad.core.rollback import words as rb
from tolariad.core.run import words as run
from tolariad.core.steps import words as steps

if TYPE_CHECKING:
    from tolariad.core.engine import At
    from tolariad.core.health.budget_slice import Overruns
    from tolariad.core.state import RunState


class Stability(msgspec.Struct, frozen=True):
    """Slice of RunState. `since` is the monotonic ns at which the mode was entered, None where it is off; `since_wall` says
    the same by the wall clock.

    `breaker` is the one of rate violations, `violations` counts them since the mode was last entered or left,
    `in_epoch` those of the present epoch, `total` all. `heeds_budgets`: a slow epoch boundary makes an epoch unhealthy.
    `troubled`: so does an emergency, which was raised in the present one.
    """

    failures: int = 3
    reset_s: float = 30.0
    probes: int = 1
    breaker: rules.Breaker = rules.Breaker()
    violations: int = 0
    in_epoch: int = 0
    total: int = 0
    since: int | None = None
    why: str = ""
    healthy_epochs: int = 0
    heeds_budgets: bool = True
    since_wall: int = 0
    troubled: bool = False

    @property
    def rule(self) -> rules.BreakerRule:
        """The breaker's, as configured; its numbers are kept bare, since a capture holds whatever an event said."""
        return rules.BreakerRule(failures=self.failures, reset_s=self.reset_s, probes=self.probes)

    @property
    def conservative(self) -> bool:
        """Is the mode on?"""
        return self.since is not None


def restraint(state: RunState) -> rules.Restraint:
    """What the run holds back at present."""
    if state.stability.conservative:
        return rules.CONSERVATIVE
    return rules.EXHAUSTED if state.checkpoints.exhausted else rules.UNRESTRAINED


def _configured(s: Stability, e: run.RunStarted | run.ConfigChanged, _: Cause) -> Stability:
    policy = e.policy
    return replace(
        s,
        failures=policy.lr_failures,
        reset_s=policy.lr_reset_s,
        probes=policy.lr_probes,
        heeds_budgets=policy.budgets_act,
    )


def _violated(s: Stability, e: lr.LrViolationDetected, _: Cause) -> Stability:
    return replace(
        s,
        breaker=rules.failed(s.breaker, s.rule, e.mono / 1e9),
        violations=s.violations + 1,
        in_epoch=s.in_epoch + 1,
        total=storable(s.total + e.count),
    )


def _epoch_finished(s: Stability, e: steps.EpochFinished, _: Cause) -> Stability:
    if s.in_epoch:
        return replace(s, in_epoch=0, healthy_epochs=0, troubled=False)
    breaker = rules.succeeded(s.breaker, s.rule, e.mono / 1e9)
    return replace(s, breaker=breaker, healthy_epochs=0 if s.troubled else s.healthy_epochs + 1, troubled=False)


def _emergency(s: Stability, _: rb.EmergencyRaised, __: Cause) -> Stability:
    return replace(s, troubled=True, healthy_epochs=0)


def _epoch_started(s: Stability, _: steps.EpochStarted, __: Cause) -> Stability:
    """Behind a rollback an epoch begins anew: healthy is one from whose very start nothing was raised."""
    return replace(s, troubled=False) if s.troubled else s


def _entered(s: Stability, e: words.ConservativeModeEntered, _: Cause) -> Stability:
    return replace(s, since=e.mono, since_wall=e.wall, why=e.why, violations=0, healthy_epochs=0)


def _exceeded(s: Stability, e: budgets.BudgetExceeded, _: Cause) -> Stability:
    slow = s.heeds_budgets and e.budget == "epoch_boundary"
    return replace(s, healthy_epochs=0) if slow else s


def _left(s: Stability, _: words.ConservativeModeLeft, __: Cause) -> Stability:
    return replace(s, since=None, since_wall=0, why="", violations=0)


APPLY: Final[ApplyTable] = {
    run.RunStarted: _configured,
    run.ConfigChanged: _configured,
    lr.LrViolationDetected: _violated,
    steps.EpochStarted: _epoch_started,
    steps.EpochFinished: _epoch_finished,
    rb.EmergencyRaised: _emergency,
    budgets.BudgetExceeded: _exceeded,
    words.ConservativeModeEntered: _entered,
    words.ConservativeModeLeft: _left,
}


def after_violation(state: RunState, _: lr.LrViolationDetected, at: At[RunState]) -> Decision | None:
    """Enough violations make the run careful."""
    why = reason_to_enter(state, at.now.mono)
    return Decision((words.ConservativeModeEntered(why=why),)) if why else None


def after_severe(state: RunState, event: rb.EmergencyRaised, _: At[RunState]) -> Decision | None:
    """A severe emergency is reason enough."""
    return entered(state, event.why) if event.level is rb.Level.SEVERE else None


def entered(state: RunState, why: str) -> Decision:
    """Begin the mode, unless it is on."""
    return Decision() if state.stability.conservative else Decision((words.ConservativeModeEntered(why=why),))


def reason_to_enter(state: RunState, mono: int) -> str | None:
    """The reason to enter the mode, or None; None too if it is on."""
    s = state.stability
    return None if s.conservative else rules.reason_for_conservative(_strain(s, state.overruns, mono))


def after_epoch(state: RunState, _: steps.EpochFinished, at: At[RunState]) -> Decision | None:
    """Leave the mode after an epoch, if enough of them were healthy, for long enough, and there is no reason for it."""
    s, mono = state.stability, at.now.mono
    if s.since is None or rules.reason_for_conservative(_strain(s, state.overruns, mono)) is not None:
        return None
    healthy = 0 if state.overruns.slow_boundaries else s.healthy_epochs
    if not rules.may_leave_conservative(healthy_epochs=healthy, since=s.since / 1e9, now=mono / 1e9):
        return None
    seconds = max(0, mono - s.since) / 1e9
    return Decision((words.ConservativeModeLeft(healthy_epochs=s.healthy_epochs, seconds=seconds),))


def _strain(s: Stability, overruns: Overruns, mono: int) -> rules.Strain:
    is_open = rules.breaker_state(s.breaker, s.rule, mono / 1e9) is rules.BreakerState.OPEN
    return rules.Strain(
        open_breakers=(*(("lr",) if is_open else ()), *overruns.open_breakers(mono)),
        rate_violations=s.violations,
        rate_violations_max=max(rules.RATE_VIOLATIONS_MAX, s.failures),
        slow_boundaries=overruns.slow_boundaries,
    )
