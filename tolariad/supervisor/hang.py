"""Decide when a trainer that still exists has hung: a rule over its heartbeats.

Promises: pure; time is an argument. Each activity is judged by how long it usually takes. An activity without history
(imports, the first step with its compilation) has the long limit.
"""

from __future__ import annotations

import statistics
from collections import deque
from typing import Final

import msgspec

from tolariad.channel import Activity, Heartbeat

_SAMPLES: Final = 64
_TIMES_MEDIAN: Final = 20.0
# Also allow a multiple of the longest gap: reading one large file among small ones is slow every time.
_TIMES_LONGEST: Final = 3.0
# These activities beat at least every 100 ms, whatever the task does. So the floor is their limit.
_STEADY: Final = frozenset({Activity.GATE, Activity.HELD, Activity.END})


class HangLimits(msgspec.Struct, frozen=True, kw_only=True):
    """`floor_s`: no shorter silence is a hang. `unknown_s`: the limit of an activity without history."""

    floor_s: float = 30.0
    unknown_s: float = 600.0


class Silence(msgspec.Struct, frozen=True, kw_only=True):
    """A trainer was silent for longer than its current activity allows."""

    activity: str
    silent_s: float
    limit_s: float


class HangMonitor:
    """Watches the heartbeats of one incarnation. Call `check` regularly."""

    def __init__(self, limits: HangLimits, started_ns: int) -> None:
        self._limits = limits
        self._last = Heartbeat(0, started_ns, Activity.IMPORT)
        self._gaps: dict[Activity, deque[float]] = {}

    def limit_s(self, activity: Activity) -> float:
        """Return how long `activity` may be silent: max(floor, 20 x median, 3 x longest), or `unknown_s`."""
        if activity is Activity.COMPILE:
            # The time that one graph took to compile does not predict the next.
            return self._limits.unknown_s
        if activity in _STEADY:
            return self._limits.floor_s
        gaps = self._gaps.get(activity)
        if not gaps:
            return self._limits.unknown_s
        return max(self._limits.floor_s, _TIMES_MEDIAN * statistics.median(gaps), _TIMES_LONGEST * max(gaps))

    def check(self, beat: Heartbeat, now_ns: int) -> Silence | None:
        """Learn from a new beat and return None, or return a Silence if the last beat is too old."""
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
        """Record the gap for the activity of the earlier beat."""
        # There may have been many beats between two checks. Divide by the steps made, or fast steps would look slow.
        gap_s = (beat.mono_ns - last.mono_ns) / 1e9 / max(1, beat.step - last.step)
        self._gaps.setdefault(last.activity, deque(maxlen=_SAMPLES)).append(gap_s)
