"""Notes about learning rates for the user. Each is said once."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

_log: Final = logging.getLogger(__name__)


class Notes:
    """Gives notes to `on_note`, or to the log."""

    def __init__(self, on_note: Callable[[str], None] | None) -> None:
        self._on_note = on_note
        self._said: set[str] = set()

    def say(self, note: str) -> None:
        """Say it, unless it was said before."""
        if note in self._said:
            return
        self._said.add(note)
        if self._on_note is not None:
            self._on_note(note)
        else:
            _log.warning("learning rate: %s", note)
