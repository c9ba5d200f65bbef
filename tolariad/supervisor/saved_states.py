"""The saved states of a run, as the kernel's effects speak of them: checkpoint folders, and snapshots in memory.

Daemon and library carry out these effects in the same way. Promises: the caller never waits, because all work is done
in other threads. A result, also an error, is an input to the kernel. Checkpoints are removed in the order of the
effects.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, TypeAlias

from tolariad.core import messages as m
from tolariad.storage.latest import LATEST, name_newest
from tolariad.storage.remove import InUse, remove, sweep, unnamed_importance
from tolariad.supervisor.arena import SnapshotArena

_log: Final = logging.getLogger(__name__)

_Work: TypeAlias = m.DeleteCheckpoint | m.SweepCheckpoints | m.SweepImportance | m.RemoveImportance | m.NameNewest


class SavedStates:
    """Removes checkpoints under `root`, and links to the newest.

    It also keeps the arena of snapshots, whose descriptor `arena` trainers inherit.
    """

    def __init__(
        self, root: Path, submit: Callable[[m.CheckpointRemoved | m.RingPrepared | m.SnapshotDiffers], None]
    ) -> None:
        self._root = root
        self._submit = submit
        self._ring = SnapshotArena(submit)
        self.arena = self._ring.descriptor
        self._removals: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="checkpoint-removal", daemon=True)
        self._thread.start()

    def obey(self, effect: m.DaemonEffect) -> None:
        """Begin what the effect asks for, if it concerns saved states. Any thread may call this."""
        match effect:
            case m.PrepareRing():
                self._ring.prepare(effect)
            case m.VerifySnapshot():
                self._ring.verify(effect)
            case _ if isinstance(effect, _Work):
                self._removals.put(effect)

    def close(self) -> None:
        """Carry out the pending removals, and end the threads."""
        self._removals.put(None)
        self._thread.join()
        self._ring.close()

    def _run(self) -> None:
        while (order := self._removals.get()) is not None:
            match order:
                case m.SweepCheckpoints():
                    self._sweep(order)
                case m.SweepImportance():
                    self._remove_files(unnamed_importance(self._root.parent, order.kept, order.highest))
                case m.RemoveImportance():
                    self._remove_files(order.files)
                case m.NameNewest():
                    self._name(order)
                case m.DeleteCheckpoint():
                    self._submit(self._removed(order))

    def _sweep(self, order: m.SweepCheckpoints) -> None:
        try:
            removed = sweep(self._root, order.committed, order.highest)
        except OSError as error:
            _log.warning("Unfinished checkpoint folders could not be removed (%s). The next start tries again.", error)
            return
        if removed:
            _log.info("Removed unfinished checkpoint folders: %s", ", ".join(removed))

    def _remove_files(self, files: Iterable[str]) -> None:
        """Remove files that the journal does not name. One that stays costs space, and nothing else."""
        for name in files:
            try:
                (self._root.parent / name).unlink(missing_ok=True)
            except OSError as error:
                _log.warning("%s could not be removed: %s", name, os.strerror(error.errno) if error.errno else error)

    def _name(self, order: m.NameNewest) -> None:
        """Let the link lead to it. A program that looks for the link finds none on a file system without links."""
        try:
            name_newest(self._root, order.id)
        except OSError as error:
            _log.info("%s/%s does not lead to %s: %s", self._root, LATEST, order.id, error.strerror or error)

    def _removed(self, order: m.DeleteCheckpoint) -> m.CheckpointRemoved:
        try:
            return m.CheckpointRemoved(id=order.id, freed=remove(self._root, order.id))
        except InUse as error:
            return m.CheckpointRemoved(id=order.id, error=str(error))
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            return m.CheckpointRemoved(id=order.id, error=f"cannot be removed: {reason}")
