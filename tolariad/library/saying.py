"""What a run did on its own, told through `logging` to the program that trains, from a thread of its own.

Promises: a log that blocks or raises holds up neither training nor the recorder; at most QUEUE_MAX lines wait for it.
It must not know: which events those are, or their words.
"""

from __future__ import annotations

import logging
import queue
import threading
from typing import TYPE_CHECKING, Final

from tolariad.core.said import is_said
from tolariad.core.sentences import sentence

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tolariad.core.vocabulary import Event

QUEUE_MAX: Final = 1000
_CLOSE_S: Final = 1.0
_log: Final = logging.getLogger("tolariad.run")


class Saying:
    """Warnings of the logger `tolariad.run`: a program that configures no logging sees them on stderr."""

    def __init__(self) -> None:
        self._lines: queue.Queue[str | None] = queue.Queue(QUEUE_MAX)
        self._thread = threading.Thread(target=self._run, name="tolaria-said", daemon=True)
        self._thread.start()

    def look(self, events: Iterable[tuple[int, Event]]) -> None:
        """In the kernel's thread: keep what is to be said; never blocks."""
        for _, event in events:
            if is_said(event):
                self._put(sentence(event))

    def _put(self, line: str | None) -> None:
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            # The journal has it, and a log that takes none of a thousand lines takes no other either.
            return

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            _log.warning("%s", line)

    def close(self) -> None:
        """Say what waits; a log that hangs is left behind."""
        self._put(None)
        self._thread.join(_CLOSE_S)
