"""The bounded queue of telemetry: four priorities, and a stated loss when it is full. Pure.

Promises: it never holds more than `limit` items, and `offer` never waits. If there is no room, the oldest item of the
lowest priority leaves, and never one that is more important than the new item. Everything that left or was not taken is
counted by its priority. One thread may offer while another takes: each step is one operation on a deque.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import Final, Generic, TypeVar

from tolariad.core.calc.priorities import TelemetryPriority

T = TypeVar("T")

# EMERGENCY is not queued here.
QUEUED: Final = tuple(one for one in TelemetryPriority if one is not TelemetryPriority.EMERGENCY)


class Backlog(Generic[T]):
    """Items that wait to be sent. `dropped`, `thinned`: how many were lost, and how many sampling left out."""

    def __init__(self, limit: int) -> None:
        """`limit`: the greatest number of items, at least 1."""
        if limit < 1:
            raise ValueError(f"A queue of {limit} items can hold nothing. Give a limit of at least 1.")
        self._limit = limit
        self._lanes: dict[TelemetryPriority, deque[T]] = {one: deque() for one in QUEUED}
        self._sampled = 0
        self.dropped: Counter[TelemetryPriority] = Counter()
        self.thinned = 0

    def __len__(self) -> int:
        return sum(map(len, self._lanes.values()))

    def offer(self, priority: TelemetryPriority, item: T, *, one_in: int = 1) -> None:
        """Add an item, or count it as lost. Below HIGH, only every `one_in`-th item is taken, the first one included.

        Source 000: less telemetry in conservative mode.
        """
        if one_in > 1 and priority < TelemetryPriority.HIGH:
            self._sampled += 1
            if self._sampled % one_in != 1:
                self.thinned += 1
                return
        if len(self) >= self._limit and not self._has_room_for(priority):
            self.dropped[priority] += 1
            return
        self._lanes[priority].append(item)

    def _has_room_for(self, priority: TelemetryPriority) -> bool:
        """Drop the oldest of the least important items, if that is not more important than the new one."""
        for one in QUEUED:
            if one > priority:
                break
            if self._lanes[one]:
                try:
                    self._lanes[one].popleft()
                except IndexError:  # taken by the other thread since the line before
                    continue
                self.dropped[one] += 1
                return True
        return len(self) < self._limit

    def take(self, most: int) -> list[T]:
        """Remove and return up to `most` items: the most important first, of these the oldest."""
        taken: list[T] = []
        for one in reversed(QUEUED):
            lane = self._lanes[one]
            try:
                while len(taken) < most:
                    taken.append(lane.popleft())
            except IndexError:
                continue
        return taken
