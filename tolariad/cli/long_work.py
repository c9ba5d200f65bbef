"""A bar on stderr for work that takes longer than a second, on a terminal only."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

_WAIT_S: Final = 1.0
_EVERY_S: Final = 0.1
_WIDTH: Final = 30


@contextmanager
def bar(
    what: str, first: int, last: int, clock: Callable[[], float] = time.monotonic
) -> Iterator[Callable[[int], None]]:
    """Give a function that is called with the present place between `first` and `last`. It draws after a second."""
    begun = drawn = clock()
    shown = False

    def at(place: int) -> None:
        nonlocal drawn, shown
        now = clock()
        if now - begun < _WAIT_S or now - drawn < _EVERY_S or not sys.stderr.isatty():
            return
        drawn, shown = now, True
        share = min(1.0, max(0.0, (place - first) / max(1, last - first)))
        filled = round(share * _WIDTH)
        print(f"\r\x1b[K{what} [{'#' * filled:<{_WIDTH}}] {share:4.0%}", end="", file=sys.stderr, flush=True)

    try:
        yield at
    finally:
        if shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
