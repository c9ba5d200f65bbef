"""What an emergency level leads to: its gravity, and the tier of the rollback that follows it."""

from __future__ import annotations

from typing import Final

from tolariad.core.rollback.words import Level, Tier

_GRAVITY: Final = {level: number for number, level in enumerate(Level)}


def graver(level: Level | None, found: Level) -> Level:
    """Return the level after `found` is raised: a level never falls."""
    return found if level is None or _GRAVITY[found] > _GRAVITY[level] else level


def tier_of(level: Level) -> Tier | None:
    """Return the tier of the rollback for an emergency of this level; None if it leads to a record or a freeze."""
    return {Level.SEVERE: Tier.FAST, Level.MAJOR: Tier.FULL}.get(level)
