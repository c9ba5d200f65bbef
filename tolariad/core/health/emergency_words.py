"""Emergencies: the levels, the order that raises one, and the events that it is raised and cleared."""

from __future__ import annotations

import enum
from typing import ClassVar, Final

from tolariad.core.base import Event
from tolariad.core.control.words import Command
from tolariad.core.health.quarantine_words import Batches
from tolariad.core.rollback.words import Otherwise, Tier


class Level(enum.Enum):
    """How serious an emergency is, in ascending order.

    Leyline's EmergencyLevel calls them NOTICE, ELEVATED, CONSERVATIVE and HALT, 1 to 4; messages to other subsystems
    use those names. Journal, socket and commands use these.
    """

    MINOR = "minor"
    MAJOR = "major"
    SEVERE = "severe"
    CRITICAL = "critical"


class Follows(enum.Enum):
    """What an emergency leads to: nothing further, a rollback, or a halt of the run."""

    RECORD = "record"
    ROLLBACK = "rollback"
    HALT = "halt"


class RaiseEmergency(Command, frozen=True, kw_only=True):
    """Raise an emergency: minor is recorded, major and severe roll back, critical freezes the trainer at once.

    With `more` the outcome is that of its consequence: RolledBack, RollbackAborted, RunFrozen; if it is only recorded, the
    event itself.
    """

    METHOD: ClassVar[str] = "Emergency"

    level: Level


class EmergencyRaised(Event, frozen=True, kw_only=True):
    """An emergency was raised. Its level falls only after a healthy epoch, or by an operator's order.

    `follows`: what is done about it (absent in journals of older versions). `checkpoint`: the target of its rollback.
    `otherwise`: what is done if that is unusable. `suspects`: the batches that are skipped after the rollback.
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
    """The emergency is over: a healthy epoch has passed, or an operator took over."""

    why: str


_GRAVITY: Final = {level: number for number, level in enumerate(Level)}


def graver(level: Level | None, found: Level) -> Level:
    """Return the level after `found` is raised: a level never falls."""
    return found if level is None or _GRAVITY[found] > _GRAVITY[level] else level


def tier_of(level: Level) -> Tier | None:
    """Return the tier of the rollback for an emergency of this level; None if it leads to a record or a freeze."""
    return {Level.SEVERE: Tier.FAST, Level.MAJOR: Tier.FULL}.get(level)
