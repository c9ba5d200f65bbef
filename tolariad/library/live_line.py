"""One line in a Jupyter notebook that says how far the run is. It is written anew once a second.

Promises: elsewhere nothing is shown, and IPython is never imported. Training does not wait for the line: a thread of
its own writes it, from figures that any thread may read. If the notebook takes no more output, the line ends and the
run goes on.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from tolariad.core.calc.text.plain import safe

_EVERY_S: Final = 1.0
_SAMPLES: Final = 10
_RESULTS_MAX: Final = 6
_VALIDATION: Final = "val_"
_log: Final = logging.getLogger(__name__)


class ProgressWords:
    """Makes the line from the newest figures; the speed is that of the last ten calls. `epochs`: how many to train."""

    def __init__(
        self, figures: Callable[[], Mapping[str, float]], epochs: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._figures, self._epochs, self._clock = figures, epochs, clock
        self._seen: deque[tuple[float, float]] = deque(maxlen=_SAMPLES)

    def __call__(self, phase: str = "") -> str:
        """Return the line; `phase` stands before it."""
        told = self._figures()
        words = [phase] if phase else []
        if not (step := told.get("step", 0.0)):
            return "  ".join([*words, "starting"] if not phase else words)
        words += [f"epoch {told.get('epoch', 0.0):.0f}/{self._epochs}", f"step {step:.0f}"]
        words += [f"{name} {told[name]:.4g}" for name in ("loss", "lr") if name in told]
        results = [(name, value) for name, value in told.items() if name.startswith(_VALIDATION)]
        words += [_result(name, value) for name, value in results[:_RESULTS_MAX]]
        if not phase and (speed := self._speed(step)) is not None:
            words.append(f"{speed:.1f} steps/s")
        return "  ".join(words)

    def _speed(self, step: float) -> float | None:
        """Return steps per second; None if the step has not moved on, or went back."""
        now = self._clock()
        if self._seen and step < self._seen[-1][1]:
            self._seen.clear()
        self._seen.append((now, step))
        since, first = self._seen[0]
        return (step - first) / (now - since) if now > since and step > first else None


def _result(name: str, value: float) -> str:
    return f"acc {100 * value:.2f} %" if name == f"{_VALIDATION}accuracy" else f"{safe(name)} {value:.4g}"


@contextmanager
def live_line(words: ProgressWords, phase: Callable[[], str]) -> Iterator[None]:
    """Show the line while the block lasts, if this is a notebook; at its end with the phase in which the run is."""
    put = _display()
    if put is None:
        yield
        return
    over = threading.Event()
    thread = threading.Thread(target=_repeat, args=(put, words, over), name="tolaria-line", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(_EVERY_S)
        _put(put, lambda: words(phase()))


def _repeat(put: Callable[[str], None], words: ProgressWords, over: threading.Event) -> None:
    while not over.is_set() and _put(put, words):
        over.wait(_EVERY_S)


def _put(put: Callable[[str], None], words: Callable[[], str]) -> bool:
    """Write the line. Return False if the notebook does not take it."""
    try:
        put(words())
    except Exception as error:  # noqa: BLE001 - whatever the notebook raises
        _log.warning("The notebook takes no more output (%s): its live line ends, and the run goes on.", error)
        return False
    return True


def _display() -> Callable[[str], None] | None:
    """Return a function that rewrites a line of this cell's output; None if this is no notebook."""
    ipython: Any = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    # IPython on a terminal has no kernel, and its lines cannot be rewritten from another thread.
    if getattr(shell, "kernel", None) is None:
        return None
    handle = ipython.display.display({"text/plain": "starting"}, raw=True, display_id=True)
    return lambda text: handle.update({"text/plain": text}, raw=True)
