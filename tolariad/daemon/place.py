"""Notice that a live run's files are not at their place any more: the folder was deleted, moved or replaced.

Open descriptors of deleted files take writes as before, so the journal itself notices nothing. Promises: a change is
noticed within a second, whatever the kernel and the trainer do. Nothing is written in the folder to find out.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from journal import Journal
from journal.fork import abandon_after_fork
from tolariad.run_files import HeldFolder

_LOOK_S: Final = 0.25
_CONSEQUENCE: Final = "while the run was live, so training was stopped"


class RunPlace:
    """The folders of a live run, held open. `lost` may be called by any thread until `close`."""

    def __init__(self, run_dir: Path, journal: Journal, go_on: str) -> None:
        """`go_on`: what goes on in another folder, with `{}` for it. Raises OSError if a folder is missing already."""
        self._journal, self._go_on = journal, go_on
        self._held: list[HeldFolder] = []
        # The run's folder first: if it was moved, its folders were moved with it.
        for path in (run_dir, journal.folder, run_dir / "checkpoints"):
            try:
                self._held.append(HeldFolder(path))
            except OSError:
                self.close()
                raise
        # A worker that outlives its parent would otherwise keep the folder's file system busy.
        abandon_after_fork(self)

    def lost(self) -> str:
        """Return what happened and what it means, as one clause; "" if everything is at its place."""
        for held in self._held:
            if fate := held.fate():
                return f"the folder {held.path} {fate} {_CONSEQUENCE}{self._advice(held)}"
        with suppress(OSError):
            if self._journal.is_deleted():
                return f"a file of {self._journal.folder} was deleted {_CONSEQUENCE}"
        return ""

    def _advice(self, held: HeldFolder) -> str:
        """Return how to go on, if nothing is lost."""
        place = held.place()
        if place is None:
            return ""
        if held is self._held[0]:
            return f"; {self._go_on.format(place)} goes on there"
        return "; move it back before the next start"

    def close(self) -> None:
        """Close the descriptors."""
        for held in self._held:
            held.close()
        self._held = []

    abandon_in_child = close


class PlaceWatch:
    """A thread that looks at regular intervals, and calls `found` as long as the run's files seem to be gone.

    The kernel then looks once more itself: between its own writes no file changes under it.
    """

    def __init__(self, place: RunPlace, found: Callable[[], None]) -> None:
        self._place = place
        self._found = found
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tolaria-place", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(_LOOK_S):
            if self._place.lost():
                self._found()

    def close(self) -> None:
        """End the thread."""
        self._ended.set()
        self._thread.join()
