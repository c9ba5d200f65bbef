"""The three phases among subsystems, as rules: who is asked in which order, who may refuse, how long each phase has.

Core subsystems are unanimous, and commit strategy first, then seeds, then training; auxiliary ones are told and cannot veto.
It must not know: how anybody is reached, clocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Protocol

import msgspec

from tolariad.core.budgets import BUDGETS
from tolariad.core.vocabulary.rollback import Level, Tier

# In the order of COMMIT; whoever else says it is core comes behind them, auxiliary ones last, each by name.
CORE: Final = ("tamiyo", "kasmina", "tolaria")


class Participant(Protocol):
    """A subsystem that goes back with the others. Every method may be called again with an id that it knows."""

    @property
    def name(self) -> str:
        """Its name, its place in the order."""

    @property
    def core(self) -> bool:
        """Is the rollback off without it?"""

    async def prepare(self, rollback: str, checkpoint_epoch: int) -> bool:
        """Can it go back there? Nothing changes."""

    async def commit(self, rollback: str) -> bool:
        """Go back."""

    async def confirm(self, rollback: str) -> bool:
        """Is it what it should be?"""

    async def abort(self, rollback: str) -> None:
        """Go on as before, or wait for the next one."""


class Limits(msgspec.Struct, frozen=True):
    """Seconds for each phase, and for all of them."""

    prepare_s: float
    commit_s: float
    confirm_s: float
    whole_s: float


def _ms(name: str) -> float:
    return BUDGETS[name].limit / 1e3


FAST: Final = Limits(_ms("fast_prepare"), _ms("fast_commit"), _ms("fast_confirm"), _ms("fast_rollback"))
# Full: two seconds to say whether, the budget to do it, and the rest of the deadline to look at it.
_PREPARE_S: Final = 2.0
_GRAVITY: Final = {level: number for number, level in enumerate(Level)}
FULL: Final = Limits(
    _PREPARE_S,
    BUDGETS["full_rollback"].limit,
    BUDGETS["rollback_deadline"].limit - BUDGETS["full_rollback"].limit - _PREPARE_S,
    BUDGETS["rollback_deadline"].limit,
)


def in_order(participants: Iterable[Participant]) -> tuple[Participant, ...]:
    """As they commit."""

    def place(one: Participant) -> tuple[int, str]:
        known = CORE.index(one.name) if one.name in CORE else len(CORE)
        return (known if one.core else len(CORE) + 1, one.name)

    return tuple(sorted(participants, key=place))


def refused_by(participants: Iterable[Participant], votes: Mapping[str, bool]) -> tuple[str, ...]:
    """The core subsystems that said no, or nothing."""
    return tuple(one.name for one in participants if one.core and not votes.get(one.name, False))


def graver(level: Level | None, found: Level) -> Level:
    """The level there is once `found` is raised: it never falls."""
    return found if level is None or _GRAVITY[found] > _GRAVITY[level] else level


def tier_of(level: Level) -> Tier | None:
    """The tier an emergency of this level goes back by; None where it goes nowhere: a record, or a freeze."""
    return {Level.SEVERE: Tier.FAST, Level.MAJOR: Tier.FULL}.get(level)
