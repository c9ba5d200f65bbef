"""When is a trainer that still exists taken for hung? A rule over its heartbeats.

Promises: pure, time comes as an argument. An activity is judged by what it usually takes; one of which nothing is known
yet (imports, the first step with its compilation) has the long limit. It must not know: processes, or what follows.
"""

from __future__ import annotations

import statistics
from collections import deque
from typing import Final

import msgspec

from tolariad.channel import Activity, Heartbeat

_SAMPLES: Final = 64
_TIMES_MEDIAN: Final = 20.0
# One large file among small ones is no hang the second time either, whatever the median says.
_TIMES_LONGEST: Final = 3.0
# These beat by promise at least each 100 ms, whatever the task is: nothing has to be learnt about them.
_STEADY: Final = frozenset({Activity.GATE, Activity.HELD, Activity.END})


class HangLimits(msgspec.Struct, frozen=True, kw_only=True):
    """`floor_s`: no silence shorter than this is a hang; `unknown_s`: the limit where there is no experience yet."""

    floor_s: float = 30.0
    unknown_s: float = 600.0


class Silence(msgspec.Struct, frozen=True, kw_only=True):
    """A trainer was silent for longer than its present activity allows."""

    activity: str
    silent_s: float
    limit_s: float


class HangMonitor:
    """One incarnation's heartbeats, looked at now and then."""

    def __init__(self, limits: HangLimits, started_ns: int) -> None:
        self._limits = limits
        self._last = Heartbeat(0, started_ns, Activity.IMPORT)
        self._gaps: dict[Activity, deque[float]] = {}

    def limit_s(self, activity: Activity) -> float:
        """How long `activity` may be silent: max(floor, 20 x its median, 3 x its longest), or the limit of the unknown."""
        if activity is Activity.COMPILE:
            # What one graph took says nothing of the next.
            return self._limits.unknown_s
        if activity in _STEADY:
            return self._limits.floor_s
        gaps = self._gaps.get(activity)
        if not gaps:
            return self._limits.unknown_s
        return max(self._limits.floor_s, _TIMES_MEDIAN * statistics.median(gaps), _TIMES_LONGEST * max(gaps))

    def check(self, beat: Heartbeat, now_ns: int) -> Silence | None:
        """Take note of the newest beat; says so where it is too old."""
        last = self._last
        if beat.mono_ns > last.mono_ns:
            self._learn(last, beat)
            self._last = beat
            return None
        silent_s = (now_ns - last.mono_ns) / 1e9
        limit_s = self.limit_s(last.activity)
        if silent_s <= limit_s:
            return None
        return Silence(activity=last.activity.name.lower(), silent_s=silent_s, limit_s=limit_s)

    def _learn(self, last: Heartbeat, beat: Heartbeat) -> None:
        """The silence since the last beat belongs to what was going on then.

        Between two looks there may have been many beats; steps tell how many, so fast steps are not taken for slow ones.
        """
        gap_s = (beat.mono_ns - last.mono_ns) / 1e9 / max(1, beat.step - last.step)
        self._gaps.setdefault(last.activity, deque(maxlen=_SAMPLES)).append(gap_s)
