"""Measure the free space on the journal's disk, and inform the kernel if that changes what the run does (core.run.rules)."""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Protocol

from tolariad import loop_files
from tolariad.core.inputs import DiskMeasured, Input
from tolariad.core.run.ask import floor_bytes, would_change
from tolariad.core.settings.model import Settings
from tolariad.core.state import RunState

_log: Final = logging.getLogger(__name__)
# Often enough to notice a disk that fills at a gigabyte a second before the reserve is used up.
_LOOK_S: Final = 1.0


class MeasuredJournal(Protocol):
    """The part of the journal that is used here."""

    def free_bytes(self) -> int:
        """Return how many bytes can still be written. Raises OSError."""


class Recording(Protocol):
    """The part of the kernel that is used here."""

    @property
    def durable(self) -> RunState:
        """The state after the last durable event."""

    def submit(self, given: Input) -> None:
        """Queue an input."""


def measured(journal: MeasuredJournal, state: RunState, settings: Settings) -> DiskMeasured | None:
    """Return the free space and the required space, or None if the system does not tell."""
    try:
        free = journal.free_bytes()
    except OSError as error:
        _log.warning("The free space on the journal's disk could not be measured: %s", error)
        return None
    return DiskMeasured(free=free, floor=floor_bytes(state, settings.journal.segment_bytes))


async def watch_disk(journal: MeasuredJournal, kernel: Recording, settings: Settings, look_s: float = _LOOK_S) -> None:
    """Measure at regular intervals until cancelled. Submit a measurement only if it changes something."""
    failed = False
    while True:
        try:
            free = await loop_files.in_thread(journal.free_bytes)
        except OSError as error:
            if not failed:
                _log.warning("The free space on the journal's disk could not be measured: %s", error)
            failed = True
        else:
            failed = False
            state = kernel.durable
            given = DiskMeasured(free=free, floor=floor_bytes(state, settings.journal.segment_bytes))
            if would_change(state, given):
                kernel.submit(given)
        await asyncio.sleep(look_s)
