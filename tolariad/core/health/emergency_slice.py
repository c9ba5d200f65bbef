"""Emergencies: slice, apply table.

Invariants: the level only rises, until a healthy epoch or an operator's order clears it.
"""

from __future__ import annotations

from typing import Final, Protocol

import msgspec
from msgspec.structs import replace

from tolariad.core.base import ApplyTable, Cause, Event
from tolariad.core.health import emergency_words as em
from tolariad.core.run import words as run
from tolariad.core.steps import words as steps


class Emergency(msgspec.Struct, frozen=True):
    """Slice of RunState: the present level, and how many were raised. `troubled`: one was raised in the present epoch.

    `why` is from the event that set the level, or from a later one that halted the run, so that it agrees with the
    halt.
    """

    level: em.Level | None = None
    why: str = ""
    raised: int = 0
    troubled: bool = False


class HasEmergency(Protocol):
    """A state with this slice."""

    @property
    def emergency(self) -> Emergency:
        """Return the present level."""


def _raised(s: Emergency, e: em.EmergencyRaised, _: Cause) -> Emergency:
    level = em.graver(s.level, e.level)
    says_why = level is not s.level or e.follows is em.Follows.HALT
    return Emergency(level, e.why if says_why else s.why, s.raised + 1, troubled=True)


def _cleared(s: Emergency, _: Event, __: Cause) -> Emergency:
    return Emergency(None, "", s.raised)


def _epoch_started(s: Emergency, _: Event, __: Cause) -> Emergency:
    return replace(s, troubled=False) if s.troubled else s


def _epoch_finished(s: Emergency, e: Event, at: Cause) -> Emergency:
    """Clear the level if no emergency was raised since the epoch's start."""
    return s if s.level is None or s.troubled else _cleared(s, e, at)


APPLY: Final[ApplyTable] = {
    em.EmergencyRaised: _raised,
    em.EmergencyCleared: _cleared,
    run.RunResumed: _cleared,
    steps.EpochStarted: _epoch_started,
    steps.EpochFinished: _epoch_finished,
}
