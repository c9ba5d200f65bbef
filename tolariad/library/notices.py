"""Log the sentences of a run through `logging`, from a separate thread.

Promises: a log handler that blocks or raises delays neither training nor the recorder. At most QUEUE_MAX lines are
pending; further ones are dropped.
"""

from __future__ import annotations

import logging
import queue
import threading
from typing import Final

QUEUE_MAX: Final = 1000
_CLOSE_S: Final = 1.0
_log: Final = logging.getLogger("tolariad.run")


class Saying:
    """Logs warnings to the logger `tolariad.run`. A program that configures no logging sees them on stderr."""

    def __init__(self) -> None:
        self._lines: queue.Queue[str | None] = queue.Queue(QUEUE_MAX)
        self._thread = threading.Thread(target=self._run, name="tolaria-said", daemon=True)
        self._thread.start()

    def note(self, text: str) -> None:
        """Queue a sentence. Never blocks."""
        self._put(text)

    def _put(self, line: str | None) -> None:
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            # Drop the rest: the events are in the journal, and a log with such a backlog takes no more lines.
            return

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            _log.warning("%s", line)

    def close(self) -> None:
        """Log the pending lines. If the log hangs, give up after a while."""
        self._put(None)
        self._thread.join(_CLOSE_S)
