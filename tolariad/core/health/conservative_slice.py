"""Conservative mode and the breaker of learning-rate violations, as recorded in the journal: slice, apply table.

Invariants: only events switch the mode, and both reset the counts. The mode restrains features (core.health.restraint).
It never changes a weight, a rate or the order of data.
"""

from __future__ import annotations

from typing import Final, Protocol

import msgspec
from msgspec.structs import replace

from tolariad.core.base import ApplyTable, Cause, storable
from tolariad.core.health import budget_words as budgets
from tolariad.core.health import conservative_words as words
from tolariad.core.health import emergency_words as em
from tolariad.core.health.breakers import Breaker, BreakerRule, failed, succeeded
from tolariad.core.rates import words as lr
from tolariad.core.run import words as run
from tolariad.core.steps import words as steps


class Stability(msgspec.Struct, frozen=True):
    """Slice of RunState.

    `since`: the monotonic ns at which the mode was entered, or None; `since_wall`: the same in wall time. `breaker`:
    the one of rate violations. `violations`: how many since the mode was last entered or left. `in_epoch`: how many in
    the present epoch. `total`: all. `heeds_budgets`: a slow epoch boundary makes an epoch unhealthy. `troubled`: an
    emergency was raised in the present epoch, so it is unhealthy.
    """

    failures: int = 3
    reset_s: float = 30.0
    probes: int = 1
    breaker: Breaker = Breaker()
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
    def rule(self) -> BreakerRule:
        """Return the breaker's rule. Its numbers are unchecked: a capture must hold whatever an event contained."""
        return BreakerRule(failures=self.failures, reset_s=self.reset_s, probes=self.probes)

    @property
    def conservative(self) -> bool:
        """Return whether the mode is on."""
        return self.since is not None


class HasStability(Protocol):
    """A state with this slice."""

    @property
    def stability(self) -> Stability:
        """Return conservative mode and its breaker."""


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
        breaker=failed(s.breaker, s.rule, e.mono / 1e9),
        violations=s.violations + 1,
        in_epoch=s.in_epoch + 1,
        total=storable(s.total + e.count),
    )


def _epoch_finished(s: Stability, e: steps.EpochFinished, _: Cause) -> Stability:
    if s.in_epoch:
        return replace(s, in_epoch=0, healthy_epochs=0, troubled=False)
    breaker = succeeded(s.breaker, s.rule, e.mono / 1e9)
    return replace(s, breaker=breaker, healthy_epochs=0 if s.troubled else s.healthy_epochs + 1, troubled=False)


def _emergency(s: Stability, _: em.EmergencyRaised, __: Cause) -> Stability:
    return replace(s, troubled=True, healthy_epochs=0)


def _epoch_started(s: Stability, _: steps.EpochStarted, __: Cause) -> Stability:
    """Reset `troubled`: after a rollback an epoch begins again, and counts from its start on."""
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
    em.EmergencyRaised: _emergency,
    budgets.BudgetExceeded: _exceeded,
    words.ConservativeModeEntered: _entered,
    words.ConservativeModeLeft: _left,
}
