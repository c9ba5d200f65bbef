"""The pace of each checkpoint of a trainer: a fixed limit, none, or one that follows what is measured beside it.

The writer's thread looks at numbers that others keep anyway: the last step, and the page's words. So a step pays
nothing for it. Promise: a measurement does not wait.
"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Final

from tolariad.core.calc.checkpoints.pacing import Beside, Pacing
from tolariad.storage.pace import AdaptivePace, Pace

if TYPE_CHECKING:
    from collections.abc import Callable

    from tolariad.channel import Page
    from tolariad.trainer.orders.reporter import Progress

# The least length of a window, in seconds and in steps.
_WINDOW_S: Final = 0.1
_STEPS: Final = 4
# If fewer steps end in this time, and in so many usual steps, training does something else, such as a validation.
_STANDING_S: Final = 1.0
_STANDING_STEPS: Final = 3.0


class Paces:
    """Makes the pace of a checkpoint that is written during training. An adapted one begins where the last one ended.

    `throttle_mb_s`: the setting. `usual_step_s`: see TrainingAndJournal.
    """

    def __init__(
        self, throttle_mb_s: float | str | None, progress: Progress, page: Page, usual_step_s: Callable[[], float]
    ) -> None:
        self._throttle = throttle_mb_s
        self._beside = TrainingAndJournal(progress, page, usual_step_s)
        self._pacing = Pacing()

    def __call__(self, tick: Callable[[], None]) -> Pace:
        """Return the pace of the next checkpoint. `tick` is called before each piece."""
        if isinstance(self._throttle, str):
            return AdaptivePace(self._pacing, self._beside, self._settle, tick)
        return Pace(self._throttle and self._throttle * 1e6, tick)

    def _settle(self, pacing: Pacing) -> None:
        self._pacing = pacing


class TrainingAndJournal:
    """Belongs to one trainer. `usual_step_s` returns how long a step takes that is not beside a checkpoint; 0: unknown.

    A duration is seen to within the time that a piece takes to be written.
    """

    def __init__(
        self,
        progress: Progress,
        page: Page,
        usual_step_s: Callable[[], float],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._progress, self._page, self._usual, self._clock = progress, page, usual_step_s, clock
        self._usual_step_s = self._usual_append_s = self._since = 0.0
        self._step = self._durable = 0
        # When the last step was seen to end; None before that.
        self._ended: float | None = None
        self._steps_s: list[float] = []
        self._appends_s: list[float] = []

    def begin(self) -> None:
        """Begin a checkpoint: what is usual was measured before it."""
        self._usual_step_s, self._usual_append_s = self._usual(), self._page.write_ns / 1e9
        self._step, self._durable, self._ended = self._progress.step, self._page.durable, None
        self._begin_window(self._clock())

    def _begin_window(self, now: float) -> None:
        self._since, self._steps_s, self._appends_s = now, [], []

    def note(self) -> None:
        """Look at training and journal. Called before each piece."""
        durable = self._page.durable
        if durable != self._durable:
            self._durable = durable
            self._appends_s.append(self._page.write_ns / 1e9)
        step = self._progress.step
        if step != self._step:
            now = self._clock()
            made, self._step = step - self._step, step
            if self._ended is not None and made > 0:
                self._steps_s += [(now - self._ended) / made] * min(made, _STEPS)
            self._ended = now

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
        # Of the durations the median: one of them may contain a validation.
        step = statistics.median(self._steps_s) / usual_s if usual_s and self._steps_s else None
        # One long write among many is nothing unusual: a quarter of them decides.
        appends_s = sorted(self._appends_s)
        append_s = appends_s[3 * len(appends_s) // 4] if appends_s else None
        found = Beside(size / passed_s, step, append_s, self._usual_append_s)
        self._begin_window(now)
        return found
