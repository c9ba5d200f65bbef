"""What the run holds back now, and why it should be in conservative mode."""

from __future__ import annotations

from typing import Protocol

from tolariad.core.checkpoints.slice import HasCheckpoints
from tolariad.core.health.breakers import BreakerState, breaker_state
from tolariad.core.health.budget_slice import HasOverruns
from tolariad.core.health.conservative_slice import HasStability
from tolariad.core.health.conservative_words import ConservativeModeEntered
from tolariad.core.health.restraint import (
    CONSERVATIVE,
    EXHAUSTED,
    RATE_VIOLATIONS_MAX,
    UNRESTRAINED,
    Restraint,
    Strain,
    reason_for_conservative,
)


class RestrainedBy(HasCheckpoints, HasStability, Protocol):
    """The slices with conservative mode, and with the checkpoints' quota."""


class Strained(HasStability, HasOverruns, Protocol):
    """The slices with rate violations, and with budgets."""


def restraint(state: RestrainedBy) -> Restraint:
    """Return what the run holds back now."""
    if state.stability.conservative:
        return CONSERVATIVE
    return EXHAUSTED if state.checkpoints.exhausted else UNRESTRAINED


def entered(state: HasStability, why: str) -> ConservativeModeEntered | None:
    """Return the event that begins the mode, or None if it is on."""
    return None if state.stability.conservative else ConservativeModeEntered(why=why)


def reason_to_enter(state: Strained, mono: int) -> str | None:
    """Return the reason to enter the mode, or None; also None if it is on."""
    return None if state.stability.conservative else reason_for(state, mono)


def reason_for(state: Strained, mono: int) -> str | None:
    """Return the reason to be in the mode, or None, whether or not the mode is on."""
    s, overruns = state.stability, state.overruns
    is_open = breaker_state(s.breaker, s.rule, mono / 1e9) is BreakerState.OPEN
    strain = Strain(
        open_breakers=(*(("lr",) if is_open else ()), *overruns.open_breakers(mono)),
        rate_violations=s.violations,
        rate_violations_max=max(RATE_VIOLATIONS_MAX, s.failures),
        slow_boundaries=overruns.slow_boundaries,
    )
    return reason_for_conservative(strain)
