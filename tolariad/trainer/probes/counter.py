"""The progress of a trial, for the user who waits for it."""

from __future__ import annotations

import sys
import time
from typing import Final

_EVERY_S: Final = 0.2


class Counter:
    """Shows on a terminal how far a trial is, on one line of stderr that is rewritten. `total`: None if unknown."""

    def __init__(self, what: str, total: int | None) -> None:
        self._what, self._total, self._next = what, total, 0.0

    def show(self, number: int) -> None:
        """Show this number, unless another one was shown just now."""
        if time.monotonic() >= self._next and sys.stderr.isatty():
            self._next = time.monotonic() + _EVERY_S
            of = "" if self._total is None else f" of {self._total}"
            self._write(f"{self._what} {number}{of}")

    def end(self) -> None:
        """Clear the line."""
        if self._next:
            self._write("")

    @staticmethod
    def _write(text: str) -> None:
        sys.stderr.write(f"\r{text}\x1b[K")
        sys.stderr.flush()
