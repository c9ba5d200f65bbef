"""Measure the free space on the journal's disk, and inform the kernel if that changes what the run does.

The rules are in `core.run.rules`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from journal import Journal
from tolariad import loop_files
from tolariad.core.inputs import DiskMeasured
from tolariad.core.run.ask import disk_would_change, floor_bytes, reserve_bytes
from tolariad.core.settings.model import Settings
from tolariad.core.state import RunState
from tolariad.kernel import Kernel

_log: Final = logging.getLogger(__name__)
# Often enough to notice a disk that fills at a gigabyte a second before the reserve is used up.
_LOOK_S: Final = 1.0


def measured(journal: Journal, state: RunState, settings: Settings) -> DiskMeasured:
    """Return the free space and the required space. Raises OSError if the system does not tell."""
    free = journal.free_bytes()
    reserve = reserve_bytes(journal.statistics().segment_no, settings.journal.segment_bytes)
    return DiskMeasured(free=free, floor=floor_bytes(state, reserve))


async def watch_disk(journal: Journal, kernel: Kernel, settings: Settings) -> None:
    """Measure at regular intervals until cancelled. Submit a measurement only if it changes something."""
    failed = False
    while True:
        state = kernel.durable
        try:
            given = await loop_files.in_thread(measured, journal, state, settings)
        except OSError as error:
            if not failed:
                _log.warning("The free space on the journal's disk could not be measured: %s", error)
            failed = True
        else:
            failed = False
            if disk_would_change(state, given):
                kernel.submit(given)
        await asyncio.sleep(_LOOK_S)
