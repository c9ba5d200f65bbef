"""Progress for the terminal, in a thread of its own: a terminal that blocks delays nothing."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from tolariad.control.replies import RunStatus
from tolariad.daemon.request import Progress

_log: Final = logging.getLogger(__name__)
_EVERY_S: Final = 0.2


class Showing:
    """Calls `show` with the newest status, at once and until `end`, and one last time then."""

    def __init__(self, show: Progress, view: Callable[[], RunStatus]) -> None:
        self._show = show
        self._view = view
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            # At once, too: the first line is how the run begins, not what a fast trainer does a moment later.
            self._show(self._view())
            ended = False
            while not ended:
                ended = self._ending.wait(_EVERY_S)
                self._show(self._view())
        except Exception:  # noqa: BLE001 - a closed terminal must not end the run
            _log.exception("The progress display failed; the run goes on without it")

    def end(self, timeout_s: float = 1.0) -> None:
        """Show the last status. Wait for `timeout_s` at most."""
        self._ending.set()
        self._thread.join(timeout_s)
