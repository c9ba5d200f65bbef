"""A bounded queue that never makes its caller wait: when it is full, the oldest of the least important goes.

Promises: `put` returns at once, from any thread; `take` gives the most important first and, among equals, the oldest; what
was dropped is counted by priority. It must not know: who reads the messages, or what is in them.
"""

from __future__ import annotations

import threading
from collections import deque

from tolariad.core.telemetry import TelemetryMessage, TelemetryPriority


class TelemetryQueue:
    """At most `size` messages, in one lane a priority."""

    def __init__(self, size: int) -> None:
        if size < 1:
            raise ValueError(f"a telemetry queue of {size} messages can hold nothing; give it at least 1")
        self._size = size
        self._count = 0
        self._lanes: dict[TelemetryPriority, deque[TelemetryMessage]] = {one: deque() for one in TelemetryPriority}
        self._dropped = dict.fromkeys(TelemetryPriority, 0)
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self._count

    def put(self, message: TelemetryMessage) -> None:
        """Queue `message`. A full queue loses the oldest of its lowest lane, or `message` where it is lower still."""
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
        """The next message, or None when there is none."""
        with self._lock:
            for lane in reversed(self._lanes.values()):
                if lane:
                    self._count -= 1
                    return lane.popleft()
        return None

    def dropped(self) -> dict[TelemetryPriority, int]:
        """How many messages of each priority were dropped since the start."""
        with self._lock:
            return dict(self._dropped)
