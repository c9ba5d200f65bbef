"""Which rank of a group the others wait for, and for how long: it is silent, though it still runs.

All ranks mark the same places (`GroupPage.progress`). While nothing moves, the one that has come least far is still in
code of its own: it sleeps, or computes for ever. If all are at one place, nobody can be named.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from tolariad.attach import words
from tolariad.core.calc.settings.rules import read_resolved

# After so long the rank is named in the log of a program; after `trainer.silent_s` it is killed there. A task's rank is
# named by the daemon, at the limit of what it does.
NAMED_S: Final = 30.0


def silence_allowed_s(opened: words.Opened) -> float:
    """Return how long a rank for which the others wait may be silent. Infinity for a task: the daemon sees to it."""
    return read_resolved(opened.config.encode()).trainer.silent_s if opened.config else math.inf


class Behind(NamedTuple):
    """The others have waited for `rank` for `seconds`."""

    rank: int
    seconds: float


class Progress:
    """What one process has seen of the progress of all ranks. Call `look` regularly."""

    def __init__(self) -> None:
        self._last: tuple[int, ...] = ()
        self._still_s = 0.0

    def look(self, progress: tuple[int, ...], passed_s: float) -> Behind | None:
        """Return the rank that the others wait for; None if there is none.

        `passed_s`: the time since the last look, as far as this process itself has run.
        """
        if progress != self._last:
            self._last, self._still_s = progress, 0.0
            return None
        self._still_s += passed_s
        least = min(progress)
        return Behind(progress.index(least), self._still_s) if least < max(progress) else None
