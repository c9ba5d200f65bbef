"""Remove checkpoints in a separate thread, in the order of the requests, and report the result of each.

Promises: the caller never waits. An error is reported, not raised.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tolariad.core.checkpoints.words import DeleteCheckpoint, SweepCheckpoints
from tolariad.core.inputs import CheckpointRemoved
from tolariad.storage.manifest import IMPORTANCE_PIECE
from tolariad.storage.remove import InUse, remove, sweep

_log: Final = logging.getLogger(__name__)


class StorageJobs:
    """The only object that removes checkpoints under `root`. Its thread calls `told` with each result."""

    def __init__(self, root: Path, told: Callable[[CheckpointRemoved], None]) -> None:
        self._root = root
        self._told = told
        self._orders: queue.SimpleQueue[DeleteCheckpoint | SweepCheckpoints | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="checkpoint-removal", daemon=True)
        self._thread.start()

    def obey(self, effect: DeleteCheckpoint | SweepCheckpoints) -> None:
        """Queue an order; never blocks."""
        self._orders.put(effect)

    def close(self) -> None:
        """Carry out the queued orders, then end the thread."""
        self._orders.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (order := self._orders.get()) is not None:
            if isinstance(order, SweepCheckpoints):
                self._sweep(order)
            else:
                self._told(self._removed(order))

    def _sweep(self, order: SweepCheckpoints) -> None:
        try:
            removed = sweep(self._root, order.committed, order.highest)
        except OSError as error:
            _log.warning("Unfinished checkpoint folders could not be removed (%s). The next start tries again.", error)
            return
        if removed:
            _log.info("Removed unfinished checkpoint folders: %s", ", ".join(removed))

    def _removed(self, order: DeleteCheckpoint) -> CheckpointRemoved:
        kept = (IMPORTANCE_PIECE,) if order.keeps_importance else ()
        try:
            return CheckpointRemoved(id=order.id, freed=remove(self._root, order.id, kept))
        except InUse as error:
            return CheckpointRemoved(id=order.id, error=str(error))
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            return CheckpointRemoved(id=order.id, error=f"cannot be removed: {reason}")
