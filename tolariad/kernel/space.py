"""Commit on a disk that may be full: the turn waits for space as it would wait for a slow disk.

This is the last resort. Long before it, `core.run.rules` pauses the run, because free space fell below its floor.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Final

from journal import Journal, JournalFull

# Short enough that the run continues at once when space was freed, and long enough to cost nothing.
_PAUSE_S: Final = 0.2

log = logging.getLogger("tolariad.kernel")


def commit(journal: Journal, raw: Sequence[bytes], *, epoch: int, step: int, wall_ns: int, mono_ns: int) -> None:
    """Make one batch durable, however long that takes. Raises JournalError if it can never become durable."""
    logged = False
    while True:
        try:
            journal.commit(raw, epoch=epoch, step=step, wall_ns=wall_ns, mono_ns=mono_ns)
        except JournalFull as error:
            # JournalFull leaves the journal as it was before the call, so the same batch is tried again.
            # Log once: the condition may last for hours, and the log lies on a disk too.
            if not logged:
                log.critical("The journal's disk is full (%s). The run waits until there is space.", error)
            logged = True
            # Sleeping in the kernel's thread is right here: no order may be acknowledged and no step may count before
            # this frame is durable, so the thread has nothing else to do.
            time.sleep(_PAUSE_S)
        else:
            return
