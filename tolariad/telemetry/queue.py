"""A bounded queue whose `put` never waits. If it is full, the oldest message of the lowest priority is dropped.

Promises: any thread may call `put`. `take` returns the highest priority first and, within a priority, the oldest
message. Drops are counted by priority.
"""

from __future__ import annotations

import threading
from collections import deque

from tolariad.core.control.telemetry import TelemetryMessage, TelemetryPriority


class TelemetryQueue:
    """Holds at most `size` messages, in one lane for each priority."""

    def __init__(self, size: int) -> None:
        if size < 1:
            raise ValueError(f"the size of the telemetry queue must be at least 1, not {size}")
        self._size = size
        self._count = 0
        self._lanes: dict[TelemetryPriority, deque[TelemetryMessage]] = {one: deque() for one in TelemetryPriority}
        self._dropped = dict.fromkeys(TelemetryPriority, 0)
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self._count

    def put(self, message: TelemetryMessage) -> None:
        """Queue `message`. If full, drop the oldest of the lowest lane, or `message` itself if it ranks lower."""
        with self._lock:
            if self._count == self._size and not self._make_room(message.priority):
                return
            self._lanes[message.priority].append(message)
            self._count += 1

    def _make_room(self, incoming: TelemetryPriority) -> bool:
        lowest = next(priority for priority, lane in self._lanes.items() if lane)
        if incoming < lowest:
            self._dropped[incoming] += 1
            return False
        self._lanes[lowest].popleft()
        self._dropped[lowest] += 1
        self._count -= 1
        return True

    def take(self) -> TelemetryMessage | None:
        """Return and remove the next message, or return None if the queue is empty."""
        with self._lock:
            for lane in reversed(self._lanes.values()):
                if lane:
                    self._count -= 1
                    return lane.popleft()
        return None

    def dropped(self) -> dict[TelemetryPriority, int]:
        """Return how many messages of each priority were dropped since the start."""
        with self._lock:
            return dict(self._dropped)
