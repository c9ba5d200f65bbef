"""When conservative mode is entered after rate violations and emergencies, and when it is left."""

from __future__ import annotations

from tolariad.core.decision import Decision
from tolariad.core.engine import At
from tolariad.core.health import conservative_words as words
from tolariad.core.health import emergency_words as em
from tolariad.core.health.conservative_ask import Strained, entered, reason_for, reason_to_enter
from tolariad.core.health.restraint import may_leave_conservative
from tolariad.core.rates import words as lr
from tolariad.core.steps import words as steps


def after_violation(state: Strained, _: lr.LrViolationDetected, at: At[Strained]) -> Decision | None:
    """Enter conservative mode after enough rate violations."""
    why = reason_to_enter(state, at.now.mono)
    return Decision((words.ConservativeModeEntered(why=why),)) if why else None


def after_severe(state: Strained, event: em.EmergencyRaised, _: At[Strained]) -> Decision | None:
    """Enter conservative mode after an emergency of level SEVERE."""
    mode = entered(state, event.why) if event.level is em.Level.SEVERE else None
    return Decision((mode,)) if mode is not None else None


def after_epoch(state: Strained, _: steps.EpochFinished, at: At[Strained]) -> Decision | None:
    """Leave conservative mode after enough healthy epochs and time, if no reason for it is left."""
    s, mono = state.stability, at.now.mono
    if s.since is None or reason_for(state, mono) is not None:
        return None
    healthy = 0 if state.overruns.slow_boundaries else s.healthy_epochs
    if not may_leave_conservative(healthy_epochs=healthy, since=s.since / 1e9, now=mono / 1e9):
        return None
    seconds = max(0, mono - s.since) / 1e9
    return Decision((words.ConservativeModeLeft(healthy_epochs=s.healthy_epochs, seconds=seconds),))
