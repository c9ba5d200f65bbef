"""A run as one participant of a rollback across subsystems.

The kernel has its own phases, durable intent and tiers. Here `prepare` changes nothing. `commit` orders the rollback
and waits for its end. `confirm` repeats the result: a run reports success only after comparing what it restored.
Promises: an id is ordered once, however often it is committed. Only a prepared rollback is ordered.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tolariad.core.interfaces import ITrainingOrchestrator


class RunParticipant:
    """Implements `core.phases.Participant`. It is the last core subsystem to commit."""

    name: Final = "tolaria"
    core: Final = True

    def __init__(self, training: ITrainingOrchestrator) -> None:
        self._training = training
        self._prepared: tuple[str, int] | None = None
        self._ordered: tuple[str, asyncio.Future[bool]] | None = None

    async def prepare(self, rollback: str, checkpoint_epoch: int) -> bool:
        """Remember the target. Return False while another ordered rollback has not ended."""
        if self._ordered is not None and self._ordered[0] != rollback and not self._ordered[1].done():
            return False
        self._prepared = rollback, checkpoint_epoch
        return True

    async def commit(self, rollback: str) -> bool:
        """Order the rollback and wait until it is done or refused. Cancelling the wait does not cancel it."""
        if self._ordered is None or self._ordered[0] != rollback:
            if self._prepared is None or self._prepared[0] != rollback:
                return False
            self._ordered = rollback, asyncio.ensure_future(self._training.rollback(self._prepared[1]))
        return await asyncio.shield(self._ordered[1])

    async def confirm(self, rollback: str) -> bool:
        """Return whether the run reported that it is at the target."""
        if self._ordered is None or self._ordered[0] != rollback or not self._ordered[1].done():
            return False
        return self._ordered[1].result()

    async def abort(self, rollback: str) -> None:
        """Forget a rollback that was not ordered. One that was ordered is in the run's journal and is not undone."""
        if self._prepared is not None and self._prepared[0] == rollback:
            self._prepared = None
