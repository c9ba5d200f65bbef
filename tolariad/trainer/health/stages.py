"""Announced stages in the trainer: who announced what, when a stage begins, and whether the run knows it already.

A loop that runs again announces again. Nothing is recorded twice then, because an announcement is known by its text:

| announced | the same as a stage with this text that begins |
|---|---|
| before the loop | anywhere on this line of training |
| at an epoch's begin, before its first batch | within this epoch, or later |
| anywhere else | at this step, or later in the steps of the journal |

Promise: while steps are run again, their stages come from the journal. An announcement that it does not hold waits for
the first new step.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from tolariad.core import messages as m
from tolariad.core.calc.bounds import NOTE_CHARACTERS_MAX
from tolariad.trainer.errors import SetupRefused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from tolariad.trainer.checkpoints.snapshot import Position


class Scope(Enum):
    """The place of the code that announces a stage: what of the run it repeats when it runs again."""

    RUN = "before the loop"
    EPOCH = "at an epoch's begin"
    HERE = "anywhere else"


class Announced(NamedTuple):
    """An announcement. `by`: who made it."""

    why: str
    scope: Scope = Scope.HERE
    by: str = m.BY_PROGRAM


class Stages:
    """What was announced, and the stages that the journal holds on this line of training.

    `waiting`: announcements that begin before the next update. `planned`: others, by the update that they begin before.
    """

    def __init__(self) -> None:
        # Those of steps that are still to be run again are among them.
        self._known: list[m.StageAt] = []
        self.waiting: list[Announced] = []
        self._before_loop: list[Announced] = []
        self.planned: dict[int, list[Announced]] = {}
        # The place of training.
        self._position: Callable[[], Position] | None = None

    def stand_at(self, position: Callable[[], Position]) -> None:
        """Ask for the place of training there."""
        self._position = position

    def plan(self, stages: Mapping[int, str], by: str) -> None:
        """Announce each of these texts before the update by which it is listed."""
        for step, why in stages.items():
            self.planned.setdefault(step, []).append(Announced(why, by=by))

    def announce(self, why: str, scope: Scope = Scope.HERE) -> None:
        """Let a stage begin at the next boundary, unless the run has it. Raises SetupRefused if `why` says nothing."""
        one = Announced(checked(why), scope)
        if scope is Scope.RUN:
            self._before_loop.append(one)
        # The place is looked at now as well: at the end of a re-run it is another one.
        if not self.knows(one):
            self.waiting.append(one)

    def due(self, before_step: int) -> list[Announced]:
        """Return the announcements that begin before this update. Those that waited are returned once."""
        waiting, self.waiting = self.waiting, []
        return [*waiting, *self.planned.get(before_step, ())]

    def follow(self, known: Iterable[m.StageAt]) -> None:
        """Stand at a restored state, whose line of training has these stages."""
        self._known = list(known)
        self.waiting = list(self._before_loop)

    def go_back(self, orders: int) -> None:
        """Stand at a rollback's target, which contains so many boundary orders."""
        self.follow([one for one in self._known if one.number <= orders])

    def began(self, number: int, why: str) -> None:
        """Note a stage that begins here. A re-run knows its stages already."""
        at = self._place
        if all(one.number != number for one in self._known):
            self._known.append(m.StageAt(number, at[0] + 1, at[1], why))

    def knows(self, announced: Announced) -> bool:
        """Return whether this announcement is of a stage that the run has."""
        return any(one.why == announced.why and self._is_same(one, announced.scope) for one in self._known)

    def _is_same(self, one: m.StageAt, scope: Scope) -> bool:
        step, epoch = self._place
        return scope is Scope.RUN or one.before_step > step or (scope is Scope.EPOCH and one.epoch == epoch)

    @property
    def _place(self) -> tuple[int, int]:
        """The last update, and the epoch in progress."""
        at = self._position() if self._position is not None else None
        return (0, 1) if at is None else (at.step, at.epoch)


def checked(why: Any) -> str:
    """Return the text of an announcement. Raises SetupRefused if it says nothing, or too much."""
    if not isinstance(why, str) or not why.strip():
        raise SetupRefused(f"new_stage() needs a text that says what changed, got {why!r}")
    if len(why) > NOTE_CHARACTERS_MAX:
        raise SetupRefused(f"new_stage(): the text has {len(why)} characters, at most {NOTE_CHARACTERS_MAX} are kept")
    return why
