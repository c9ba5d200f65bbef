"""A bus that ends in this process: it keeps the newest messages in memory."""

from __future__ import annotations

from collections import deque

from tolariad.core.control.telemetry import TelemetryMessage


class MemorySink:
    """Keeps the newest `size` messages."""

    def __init__(self, size: int = 1000) -> None:
        self._recent: deque[TelemetryMessage] = deque(maxlen=size)

    async def publish(self, message: TelemetryMessage) -> None:
        """Keep one message; drop the oldest if there are too many."""
        self._recent.append(message)

    @property
    def recent(self) -> tuple[TelemetryMessage, ...]:
        """The kept messages, oldest first."""
        return tuple(self._recent)
