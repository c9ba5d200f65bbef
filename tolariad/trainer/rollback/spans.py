"""The parts of one rollback, timed one behind the other. It must not know: what they do."""

from __future__ import annotations

import time

from tolariad.core.vocabulary.rollback import RollbackSpans


class Spans:
    """Begun with the first part; each ends where the next begins."""

    def __init__(self) -> None:
        self._seconds = dict.fromkeys(RollbackSpans.__struct_fields__, 0.0)
        self._last = time.perf_counter()

    def done(self, part: str) -> None:
        """The time since the last one ended was this part's."""
        now = time.perf_counter()
        self._seconds[part] += now - self._last
        self._last = now

    @property
    def taken(self) -> RollbackSpans:
        """Seconds of each."""
        return RollbackSpans(**self._seconds)
