"""The safety window after masks: gradient norm, speed and memory, measured once and reported once.

The kernel judges the accuracy, and decides what follows. Promises: a step costs two appends. Nothing that is measured
here enters the training or a checkpoint: times differ from run to run.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

import torch

from tolariad.core import messages as m
from tolariad.core.calc.pruning.verdict import Trip, WindowMeasure, trips

if TYPE_CHECKING:
    from tolariad.core.calc.settings.pruning import PruneSafety

# The gradient norm and the memory are judged after so many steps of the window, again and again.
_EVERY: Final = 8
# The median is of this many gradient norms. It needs the first number of them, and one of times the second, or all of a
# shorter window.
_NORMS: Final = 32
_NORMS_MIN: Final = 8
_TIMES_MIN: Final = 50
# For a norm that was 0, or that is not finite: JSON has no infinity.
_HUGE: Final = 1e300


class Window(NamedTuple):
    """The window of one mask set. Update `first` is the first one with the masks. It is a part of the state.

    `grace` updates are not judged, the `steps` after them are. `norm_before`: the median gradient norm; None: unknown.
    """

    cycle: int
    first: int
    grace: int
    steps: int
    norm_before: float | None

    @property
    def last(self) -> int:
        """The last update of the window."""
        return self.first + self.grace + self.steps - 1


class WindowWatch:
    """Measures one window in this process. `is_over`: its report was given."""

    def __init__(
        self, window: Window, safety: PruneSafety, device: torch.device, *, step_s_before: float | None = None
    ) -> None:
        """`step_s_before`: the median time of a step before the masks; None: unknown."""
        self._window, self._safety, self._device = window, safety, device
        self._step_s_before = step_s_before
        self._norms: deque[float] = deque(maxlen=_NORMS)
        self._times: list[float] = []
        self._judges_memory = may_judge_memory(device, safety)
        self._judged = 0
        self.is_over = False

    def saw(self, step: int, norm: float, seconds: float | None) -> m.PruneWatchReport | None:
        """Take in a step. Return the report when a limit is exceeded, or the window is over; else None.

        `norm`: -1 if it was not measured. `seconds`: None if they are not those of training, as in a re-run.
        """
        if self.is_over or step < self._window.first + self._window.grace:
            return None
        if norm != -1.0:
            self._norms.append(norm if math.isfinite(norm) else math.inf)
        if seconds is not None:
            self._times.append(seconds)
        self._judged += 1
        ends = step >= self._window.last
        if not ends and self._judged % _EVERY:
            return None
        measured = self._measure(ends=ends)
        found = trips(measured, self._safety)
        if not ends and not found:
            return None
        self.is_over = True
        return self._report(step, measured, found)

    def _measure(self, *, ends: bool) -> WindowMeasure:
        """Return what is known by now. The speed is compared at the end only."""
        enough = len(self._times) >= min(_TIMES_MIN, self._window.steps)
        known = len(self._norms) >= min(_NORMS_MIN, self._window.steps)
        return WindowMeasure(
            gradient_norm_before=self._window.norm_before if known else None,
            gradient_norm=statistics.median(self._norms) if known else None,
            step_s_before=self._step_s_before if ends and enough else None,
            step_s=statistics.median(self._times) if ends and enough else None,
            memory=memory_in_use(self._device) if self._judges_memory else None,
        )

    def _report(self, step: int, measured: WindowMeasure, found: tuple[Trip, ...]) -> m.PruneWatchReport:
        return m.PruneWatchReport(
            cycle=self._window.cycle,
            step=step,
            trips=found,
            norm_ratio=_ratio(measured.gradient_norm, measured.gradient_norm_before),
            speed_ratio=_ratio(measured.step_s_before, measured.step_s),
            memory=measured.memory,
        )


class StepTimes:
    """The times of the newest steps, from one to the next. On the CPU they are those of the thread on a core."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._times: deque[float] = deque(maxlen=count)
        self._last: float | None = None

    def since_last(self, now: float) -> float | None:
        """Return the seconds since the last call; None after `stop`."""
        before, self._last = self._last, now
        return None if before is None else now - before

    def add(self, seconds: float) -> None:
        """Keep the time of one step."""
        self._times.append(seconds)

    def stop(self) -> None:
        """The time up to the next step is not that of a step."""
        self._last = None

    @property
    def median(self) -> float | None:
        """The median, or None if there are too few."""
        times = self._times
        return statistics.median(times) if len(times) >= min(_TIMES_MIN, self._count) else None


def may_judge_memory(device: torch.device, safety: PruneSafety) -> bool:
    """Return whether the memory in use is within its limit. If it is not before the masks, they are not the reason."""
    memory = memory_in_use(device)
    return memory is not None and memory <= safety.memory


def memory_in_use(device: torch.device) -> float | None:
    """Return the share of the memory that is in use: of the device, or of the host for the CPU. None: unknown."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return 1.0 - free / total
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:  # noqa: PTH123 - a Path would not be clearer
            found = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
        return 1.0 - found["MemAvailable"] / found["MemTotal"]
    except (OSError, KeyError, ValueError):
        return None


def _ratio(above: float | None, below: float | None) -> float | None:
    if above is None or below is None:
        return None
    return min(above / below, _HUGE) if below > 0.0 else (1.0 if above == 0.0 else _HUGE)
