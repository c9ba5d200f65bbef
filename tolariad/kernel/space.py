"""Committing on a disk that may be full: the turn waits for space as it would for a slow disk.

It must not know: what is committed, and what a run does when space is short (core.disk: it paused long before).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Final

from journal import Journal, JournalFull

_PAUSE_S: Final = 0.2

log = logging.getLogger("tolariad.kernel")


def commit(journal: Journal, raw: Sequence[bytes], *, epoch: int, step: int, wall_ns: int, mono_ns: int) -> None:
    """Make one batch durable, however long that takes. Raises JournalError where it can never be."""
    told = False
    while True:
        try:
            journal.commit(raw, epoch=epoch, step=step, wall_ns=wall_ns, mono_ns=mono_ns)
        except JournalFull as error:
            # What is in the batch is not lost, only late.
            if not told:
                log.critical("nothing can be recorded for now: %s", error)
            told = True
            time.sleep(_PAUSE_S)
        else:
            return
