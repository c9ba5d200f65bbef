"""Times of the consecutive parts of one rollback."""

from __future__ import annotations

import time

from tolariad.core.rollback.words import RollbackSpans


class Spans:
    """Starts timing at its creation. Each part ends where the next one begins."""

    def __init__(self) -> None:
        self._seconds = dict.fromkeys(RollbackSpans.__struct_fields__, 0.0)
        self._last = time.perf_counter()

    def done(self, part: str) -> None:
        """End a part, or the turn of a participant: it took the time since the end of the one before it."""
        now = time.perf_counter()
        self._seconds[part if part in self._seconds else "rest"] += now - self._last
        self._last = now

    @property
    def taken(self) -> RollbackSpans:
        """Seconds of each part."""
        return RollbackSpans(**self._seconds)
