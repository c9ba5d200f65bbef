"""What the run holds back at present, and why it should be in conservative mode."""

from __future__ import annotations

from typing import Protocol

from tolariad.core import stability as rules
from tolariad.core.checkpoints.slice import HasCheckpoints
from tolariad.core.health.budget_slice import HasOverruns
from tolariad.core.health.conservative_slice import HasStability
from tolariad.core.health.conservative_words import ConservativeModeEntered


class RestrainedBy(HasCheckpoints, HasStability, Protocol):
    """Conservative mode, and whether the checkpoints exceed their quota."""


class Strained(HasStability, HasOverruns, Protocol):
    """Rate violations, and budgets that are exceeded."""


def restraint(state: RestrainedBy) -> rules.Restraint:
    """What the run holds back at present."""
    if state.stability.conservative:
        return rules.CONSERVATIVE
    return rules.EXHAUSTED if state.checkpoints.exhausted else rules.UNRESTRAINED


def entered(state: HasStability, why: str) -> ConservativeModeEntered | None:
    """Return the event that begins the mode, or None if it is on."""
    return None if state.stability.conservative else ConservativeModeEntered(why=why)


def reason_to_enter(state: Strained, mono: int) -> str | None:
    """Return the reason to enter the mode, or None; None too if it is on."""
    return None if state.stability.conservative else reason_for(state, mono)


def reason_for(state: Strained, mono: int) -> str | None:
    """Return the reason to be in the mode, whether or not it is on; None if there is none."""
    s, overruns = state.stability, state.overruns
    is_open = rules.breaker_state(s.breaker, s.rule, mono / 1e9) is rules.BreakerState.OPEN
    strain = rules.Strain(
        open_breakers=(*(("lr",) if is_open else ()), *overruns.open_breakers(mono)),
        rate_violations=s.violations,
        rate_violations_max=max(rules.RATE_VIOLATIONS_MAX, s.failures),
        slow_boundaries=overruns.slow_boundaries,
    )
    return rules.reason_for_conservative(strain)
