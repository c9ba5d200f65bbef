"""A bar on stderr for work that takes longer than a second, on a terminal only.

Promises: nothing is written within the first second, nor to a stream that is no terminal. The line is gone before the
command prints its answer: print none while a bar is open. A thread draws, so work that cannot say how far it is shows
that it goes on, and for how long.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TextIO

from tolariad.cli.output import duration

_WAIT_S: Final = 1.0
_EVERY_S: Final = 0.1
_WIDTH: Final = 30
_WIDTH_MIN: Final = 4
# What stands beside the bar: spaces, brackets, and the share or the time.
_BESIDE: Final = 16
_CLEAN: Final = "\r\x1b[K"


class Line:
    """The line of a bar. `first`, `last`: the places that the work goes through; equal: it cannot say where it is."""

    def __init__(self, what: str, first: int, last: int, now: float) -> None:
        self._what, self._first, self._last, self._begun = what, first, last, now
        self.place = first

    def drawn(self, now: float, columns: int) -> str:
        """Return the line, of fewer characters than the terminal has columns."""
        width = min(_WIDTH, columns - len(self._what) - _BESIDE)
        elapsed_s = now - self._begun
        if self._last <= self._first:
            at = int(elapsed_s / _EVERY_S) % max(1, width)
            shown, told = f"{'#':>{at + 1}}", f"{int(elapsed_s)} s" if elapsed_s < 100 else duration(elapsed_s)
        else:
            share = min(1.0, max(0.0, (self.place - self._first) / (self._last - self._first)))
            shown, told = "#" * round(share * width), f"{share:4.0%}"
        bar = f" [{shown:<{width}}]" if width >= _WIDTH_MIN else ""
        return f"{self._what}{bar} {told}"[: max(0, columns - 1)]


@contextmanager
def bar(
    what: str, first: int = 0, last: int = 0, stream: TextIO | None = None, wait_s: float = _WAIT_S
) -> Iterator[Callable[[int], None]]:
    """Give a function that is called with the present place between `first` and `last`.

    Without places the line shows that the work goes on. `wait_s`: how long nothing is drawn.
    """
    to = stream if stream is not None else sys.stderr
    line = Line(what, first, last, time.monotonic())

    def at(place: int) -> None:
        line.place = place

    if not to.isatty():
        yield at
        return
    over = threading.Event()
    thread = threading.Thread(target=_draw, args=(line, to, wait_s, over), daemon=True, name="tolaria-bar")
    thread.start()
    try:
        yield at
    finally:
        over.set()
        thread.join()


def _draw(line: Line, stream: TextIO, wait_s: float, over: threading.Event) -> None:
    if over.wait(wait_s):
        return
    from shutil import get_terminal_size

    while True:
        text = line.drawn(time.monotonic(), get_terminal_size().columns)
        print(f"{_CLEAN}{text}", end="", file=stream, flush=True)
        if over.wait(_EVERY_S):
            break
    print(_CLEAN, end="", file=stream, flush=True)
