"""Removing checkpoints in a thread of its own, in the order it was told to, and saying what became of each.

Promises: whoever gives an order never waits; an error is told, never raised. It must not know: why one is removed.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tolariad.core.inputs import CheckpointRemoved
from tolariad.core.vocabulary.checkpoints import DeleteCheckpoint, SweepCheckpoints
from tolariad.storage.manifest import IMPORTANCE_PIECE
from tolariad.storage.remove import InUse, remove, sweep

_log: Final = logging.getLogger(__name__)


class StorageJobs:
    """The one hand that removes checkpoints under `root`; `told` is called in its thread."""

    def __init__(self, root: Path, told: Callable[[CheckpointRemoved], None]) -> None:
        self._root = root
        self._told = told
        self._orders: queue.SimpleQueue[DeleteCheckpoint | SweepCheckpoints | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="checkpoint-removal", daemon=True)
        self._thread.start()

    def obey(self, effect: DeleteCheckpoint | SweepCheckpoints) -> None:
        """Take note; never blocks."""
        self._orders.put(effect)

    def close(self) -> None:
        """Do what was ordered, then end."""
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
            _log.warning("what is left of checkpoints that never were cannot be removed: %s", error)
            return
        if removed:
            _log.info("removed what was left of checkpoints that never were: %s", ", ".join(removed))

    def _removed(self, order: DeleteCheckpoint) -> CheckpointRemoved:
        kept = (IMPORTANCE_PIECE,) if order.keeps_importance else ()
        try:
            return CheckpointRemoved(id=order.id, freed=remove(self._root, order.id, kept))
        except InUse as error:
            return CheckpointRemoved(id=order.id, error=str(error))
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            return CheckpointRemoved(id=order.id, error=f"cannot be removed: {reason}")
