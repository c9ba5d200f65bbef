"""Log the run's notable actions through `logging`, from a separate thread.

Promises: a log handler that blocks or raises delays neither training nor the recorder. At most QUEUE_MAX lines are
pending; further ones are dropped.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Iterable
from typing import Final

from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.core.messages.sentences.text import sentence

QUEUE_MAX: Final = 1000
_CLOSE_S: Final = 1.0
_log: Final = logging.getLogger("tolariad.run")


class Saying:
    """Logs warnings to the logger `tolariad.run`. A program that configures no logging sees them on stderr."""

    def __init__(self) -> None:
        self._lines: queue.Queue[str | None] = queue.Queue(QUEUE_MAX)
        self._corrections = 0
        self._thread = threading.Thread(target=self._run, name="tolaria-said", daemon=True)
        self._thread.start()

    def queue(self, events: Iterable[tuple[int, m.Event]]) -> None:
        """Queue the events that are to be logged. Never blocks. Runs in the kernel's thread."""
        for _, event in events:
            if not _is_said(event):
                continue
            self._corrections += isinstance(event, m.LrViolationDetected)
            if not isinstance(event, m.LrViolationDetected) or self._corrections <= st.CORRECTIONS_SAID_MAX:
                self._put(sentence(event))
            elif self._corrections == st.CORRECTIONS_SAID_MAX + 1:
                self._put(st.FURTHER_CORRECTIONS)

    def note(self, text: str) -> None:
        """Queue a sentence about the start of the run. Never blocks."""
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


def _is_said(event: m.Event) -> bool:
    """Say in a program what the daemon's console says, with two differences.

    The caller gets the exception of a trainer that died, and nothing starts it again. A re-run, which the console shows
    as a stage of the run, is said when it begins.
    """
    return isinstance(event, m.RerunBegun) or (st.is_said(event) and not isinstance(event, m.TrainerDied))
