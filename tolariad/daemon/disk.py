"""Looks how much is free on the journal's disk, and tells the kernel when that changes what the run does.

It must not know: what follows from it (core.disk).
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Protocol

from tolariad.core.disk import floor_bytes, would_change
from tolariad.core.inputs import DiskMeasured, Input
from tolariad.core.settings import Settings
from tolariad.core.state import RunState

_log: Final = logging.getLogger(__name__)
# A disk that takes a gigabyte a second is looked at before a spare segment and a checkpoint are gone.
_LOOK_S: Final = 1.0


class MeasuredJournal(Protocol):
    """What is asked of the journal."""

    def free_bytes(self) -> int:
        """How much can still be written. Raises OSError."""


class Recording(Protocol):
    """What is asked of the kernel."""

    @property
    def durable(self) -> RunState:
        """The state after the last durable event."""

    def submit(self, given: Input) -> None:
        """Hand in an input."""


def measured(journal: MeasuredJournal, state: RunState, settings: Settings) -> DiskMeasured | None:
    """What is free and what must be; None if the system does not say."""
    try:
        free = journal.free_bytes()
    except OSError as error:
        _log.warning("it is not known how much space the journal has: %s", error)
        return None
    return DiskMeasured(free=free, floor=floor_bytes(state, settings.journal.segment_bytes))


async def watch_disk(journal: MeasuredJournal, kernel: Recording, settings: Settings, look_s: float = _LOOK_S) -> None:
    """Look again and again, until cancelled. Only what is news is handed in."""
    failed = False
    while True:
        try:
            free = journal.free_bytes()
        except OSError as error:
            if not failed:
                _log.warning("it is not known how much space the journal has: %s", error)
            failed = True
        else:
            failed = False
            state = kernel.durable
            given = DiskMeasured(free=free, floor=floor_bytes(state, settings.journal.segment_bytes))
            if would_change(state, given):
                kernel.submit(given)
        await asyncio.sleep(look_s)
