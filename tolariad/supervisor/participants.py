"""A run as one subsystem among others that go back together.

Its own three phases, their durable intent and their tiers are the kernel's; here PREPARE changes nothing, COMMIT orders the
rollback and waits for its end, and CONFIRM repeats what came of it, since a run says that it went back only behind its own
comparison. Promises: an id is ordered once, however often it is asked for; nothing is ordered that was not prepared. It must
not know: checkpoints, tensors, the daemon.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tolariad.core.interfaces import ITrainingOrchestrator


class RunParticipant:
    """Satisfies `core.phases.Participant`; of the core, the last to commit."""

    name: Final = "tolaria"
    core: Final = True

    def __init__(self, training: ITrainingOrchestrator) -> None:
        self._training = training
        self._prepared: tuple[str, int] | None = None
        self._ordered: tuple[str, asyncio.Future[bool]] | None = None

    async def prepare(self, rollback: str, checkpoint_epoch: int) -> bool:
        """Nothing changes. False while another one that was ordered has no end."""
        if self._ordered is not None and self._ordered[0] != rollback and not self._ordered[1].done():
            return False
        self._prepared = rollback, checkpoint_epoch
        return True

    async def commit(self, rollback: str) -> bool:
        """Order it and wait until it is done or refused. Whoever gives up waiting does not end it."""
        if self._ordered is None or self._ordered[0] != rollback:
            if self._prepared is None or self._prepared[0] != rollback:
                return False
            self._ordered = rollback, asyncio.ensure_future(self._training.rollback(self._prepared[1]))
        return await asyncio.shield(self._ordered[1])

    async def confirm(self, rollback: str) -> bool:
        """Did the run say that it stands there?"""
        if self._ordered is None or self._ordered[0] != rollback or not self._ordered[1].done():
            return False
        return self._ordered[1].result()

    async def abort(self, rollback: str) -> None:
        """What was not ordered is forgotten; a run that went back has done so by its own journal, and stays there."""
        if self._prepared is not None and self._prepared[0] == rollback:
            self._prepared = None
