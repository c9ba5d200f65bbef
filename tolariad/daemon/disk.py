"""Measure the free space on the journal's disk, and inform the kernel if that changes what the run does.

The rules are in `core.rules.run`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from journal import Journal
from tolariad import loop_files
from tolariad.core import messages as m
from tolariad.core import queries as q
from tolariad.core.calc.settings.model import Settings
from tolariad.core.state.run_state import RunState
from tolariad.kernel import Kernel

_log: Final = logging.getLogger(__name__)
# Often enough to notice a disk that fills at a gigabyte a second before the reserve is used up.
_LOOK_S: Final = 1.0


def measured(journal: Journal, state: RunState, settings: Settings) -> m.DiskMeasured:
    """Return the free space and the required space. Raises OSError if the system does not tell."""
    free = journal.free_bytes()
    reserve = q.reserve_bytes(journal.statistics().segment_no, settings.journal.segment_bytes)
    return m.DiskMeasured(free=free, floor=q.floor_bytes(state, reserve))


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
            if q.disk_would_change(state, given):
                kernel.submit(given)
        await asyncio.sleep(_LOOK_S)
