"""The pace of each checkpoint of a trainer: a fixed limit, none, or one that follows what is measured beside it.

The stopwatch notes each step beside a checkpoint, and the page shows the journal's last write. The writer's thread
looks at both between two pieces. A step that it saw end would be too coarse: pieces take longer than many steps. Only
steps beside a checkpoint pay, a reading of the clock each. Promise: a measurement does not wait.
"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Final, Protocol

from tolariad.core.calc.checkpoints.pacing import Beside, Pacing, begun
from tolariad.storage.pace import AdaptivePace, Pace

if TYPE_CHECKING:
    from collections.abc import Callable

    from tolariad.channel import Page

# The least length of a window, in seconds and in steps.
_WINDOW_S: Final = 0.1
_STEPS: Final = 6
# If fewer steps end in this time, and in so many usual steps, training does something else, such as a validation.
_STANDING_S: Final = 1.0
_STANDING_STEPS: Final = 3.0


class Steps(Protocol):
    """The durations of steps, in seconds (`trainer.health.stopwatch`)."""

    @property
    def usual_step_s(self) -> float:
        """Of a step that is not beside a checkpoint; 0: unknown."""

    def taken_beside(self) -> list[float]:
        """Of those beside a checkpoint, since the last call."""


class Paces:
    """Makes the pace of a checkpoint that is written during training. An adapted one begins where the last one ended.

    `throttle_mb_s`: the setting. `steps` is called only while one is written.
    """

    def __init__(self, throttle_mb_s: float | str | None, page: Page, steps: Callable[[], Steps]) -> None:
        self._throttle = throttle_mb_s
        self._beside = TrainingAndJournal(page, steps)
        self._pacing = Pacing()

    def __call__(self, tick: Callable[[], None]) -> Pace:
        """Return the pace of the next checkpoint. `tick` is called before each piece."""
        if isinstance(self._throttle, str):
            return AdaptivePace(begun(self._pacing), self._beside, self._settle, tick)
        return Pace(self._throttle and self._throttle * 1e6, tick)

    def _settle(self, pacing: Pacing) -> None:
        self._pacing = pacing


class TrainingAndJournal:
    """Belongs to one trainer."""

    def __init__(self, page: Page, steps: Callable[[], Steps], clock: Callable[[], float] = time.monotonic) -> None:
        self._page, self._steps, self._clock = page, steps, clock
        self._usual_step_s = self._usual_append_s = self._since = 0.0
        self._durable = 0
        self._steps_s: list[float] = []
        self._appends_s: list[float] = []

    def begin(self) -> None:
        """Begin a checkpoint: what is usual was measured before it."""
        self._usual_step_s, self._usual_append_s = self._steps().usual_step_s, self._page.write_ns / 1e9
        self._durable = self._page.durable
        self._steps().taken_beside()
        self._begin_window(self._clock())

    def _begin_window(self, now: float) -> None:
        self._since, self._steps_s, self._appends_s = now, [], []

    def note(self) -> None:
        """Look at training and journal. Called before each piece."""
        durable = self._page.durable
        if durable != self._durable:
            self._durable = durable
            self._appends_s.append(self._page.write_ns / 1e9)
        self._steps_s += self._steps().taken_beside()

    def seen(self, size: int) -> Beside | None:
        """Return the measurements since the last ones, and begin anew; None if too little is known yet."""
        now = self._clock()
        passed_s, usual_s = now - self._since, self._usual_step_s
        if passed_s < _WINDOW_S:
            return None
        stands = passed_s >= max(_STANDING_S, _STANDING_STEPS * usual_s)
        enough = len(self._steps_s) >= _STEPS or (self._steps_s and passed_s >= _STANDING_S)
        if usual_s and not enough and not stands:
            return None
        # Of the durations the median: one of them may contain a task's own evaluation.
        step = statistics.median(self._steps_s) / usual_s if usual_s and self._steps_s else None
        # One long write among many is nothing unusual: a quarter of them decides.
        appends_s = sorted(self._appends_s)
        append_s = appends_s[3 * len(appends_s) // 4] if appends_s else None
        found = Beside(size / passed_s, step, append_s, self._usual_append_s)
        self._begin_window(now)
        return found
