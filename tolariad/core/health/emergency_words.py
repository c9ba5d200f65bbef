"""Emergencies: the levels, the order that raises one, and the events that it is raised and cleared."""

from __future__ import annotations

import enum
from typing import ClassVar, Final

from tolariad.core.base import Event
from tolariad.core.control.words import Command
from tolariad.core.health.quarantine_words import Batches
from tolariad.core.rollback.words import Otherwise, Tier


class Level(enum.Enum):
    """How grave an emergency is, the least first.

    Leyline's EmergencyLevel has NOTICE, ELEVATED, CONSERVATIVE and HALT for them, 1 to 4, where a message leaves for another
    subsystem; journal, socket and commands have these.
    """

    MINOR = "minor"
    MAJOR = "major"
    SEVERE = "severe"
    CRITICAL = "critical"


class Follows(enum.Enum):
    """What an emergency leads to, by events of its own chain: nothing but conservative mode, a rollback, the run's halt."""

    RECORD = "record"
    ROLLBACK = "rollback"
    HALT = "halt"


class RaiseEmergency(Command, frozen=True, kw_only=True):
    """Raise an emergency: minor is recorded, major and severe roll back, critical freezes the trainer at once.

    With `more` the outcome is that of what it leads to: RolledBack, RollbackAborted, RunFrozen; of a record, the event itself.
    """

    METHOD: ClassVar[str] = "Emergency"

    level: Level


class EmergencyRaised(Event, frozen=True, kw_only=True):
    """The level rose; it falls only after a healthy epoch, or by an operator's order.

    `follows`: what is done about it; absent in journals of older versions. `checkpoint`: where it leads back to, `otherwise`:
    what is done if that cannot be used. `suspects`: the batches that the rollback passes over.
    """

    ORDER: ClassVar[str] = "RaiseEmergency"

    level: Level
    why: str
    id: str = ""
    follows: Follows | None = None
    checkpoint: str = ""
    otherwise: Otherwise = Otherwise.HALT
    suspects: Batches | None = None


class EmergencyCleared(Event, frozen=True, kw_only=True):
    """An epoch went by in health, or an operator took over: no emergency any more."""

    why: str


EVENTS = (EmergencyRaised, EmergencyCleared)

_GRAVITY: Final = {level: number for number, level in enumerate(Level)}


def graver(level: Level | None, found: Level) -> Level:
    """Return the level after `found` is raised: a level never falls."""
    return found if level is None or _GRAVITY[found] > _GRAVITY[level] else level


def tier_of(level: Level) -> Tier | None:
    """Return the tier of the rollback for an emergency of this level; None if it leads to a record or a freeze."""
    return {Level.SEVERE: Tier.FAST, Level.MAJOR: Tier.FULL}.get(level)
