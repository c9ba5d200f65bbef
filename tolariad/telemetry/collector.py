"""Collect telemetry without waiting, send it from one task, count the losses.

Promises: training never waits for anything here. A bus that is slow, down or broken costs messages only (P6).
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final, Protocol

from tolariad.core.control.telemetry import TelemetryMessage, TelemetryPriority
from tolariad.telemetry.queue import TelemetryQueue

_log: Final = logging.getLogger(__name__)

_SEND_TIMEOUT_S: Final = 5.0
# How long an idle sender sleeps at most: `offer` from another thread cannot wake the loop without touching it.
_IDLE_S: Final = 0.25


class OonaBus(Protocol):
    """The bus that messages are sent to."""

    async def publish(self, message: TelemetryMessage) -> None:
        """Send one message. If it raises, whatever the error, the message counts as dropped."""


class TelemetryCollector:
    """A bounded queue and the task that empties it into the bus."""

    def __init__(self, oona_bus: OonaBus, max_queue_size: int = 10000) -> None:
        self._bus = oona_bus
        self._queue = TelemetryQueue(max_queue_size)
        self._failed = dict.fromkeys(TelemetryPriority, 0)
        self._told: dict[TelemetryPriority, int] = dict.fromkeys(TelemetryPriority, 0)
        self._sampling = 1
        self._sampled = 0

    def sample(self, one_in: int) -> None:
        """Sample one in `one_in` of the messages below HIGH. Messages left out by sampling do not count as dropped."""
        if one_in != self._sampling:
            self._sampling, self._sampled = one_in, 0

    def offer(
        self, priority: TelemetryPriority, source: str, event_type: str, payload: dict[str, object], wall_ns: int = 0
    ) -> None:
        """Queue one message; never waits. Any thread may call this. `wall_ns` 0 means now."""
        if self._sampling > 1 and priority < TelemetryPriority.HIGH:
            self._sampled += 1
            if self._sampled % self._sampling != 1:
                return
        self._queue.put(TelemetryMessage(wall_ns or time.time_ns(), priority, source, event_type, payload))

    async def collect_telemetry(
        self, priority: TelemetryPriority, source: str, event_type: str, payload: dict[str, object]
    ) -> None:
        """Queue one message. It is a coroutine because the interface says so; it never waits."""
        self.offer(priority, source, event_type, payload)

    @property
    def dropped_count(self) -> int:
        """How many messages, of all priorities, never reached the bus since the start."""
        return sum(self._dropped().values())

    @property
    def waiting(self) -> int:
        """How many messages are queued."""
        return len(self._queue)

    def _dropped(self) -> dict[TelemetryPriority, int]:
        return {priority: count + self._failed[priority] for priority, count in self._queue.dropped().items()}

    def take_dropped(self) -> dict[str, int]:
        """Return the drops since the last call, by priority, without zeros. The journal records them once a minute."""
        now = self._dropped()
        fresh = {one.name: now[one] - self._told[one] for one in now if now[one] > self._told[one]}
        self._told = now
        return fresh

    async def run(self) -> None:
        """Send queued messages until cancelled."""
        while True:
            # Yield after each message: a bus that never suspends would otherwise block the loop until the queue is
            # empty.
            pause_s = 0.0 if await self.send_one() else _IDLE_S
            await asyncio.sleep(pause_s)

    async def send_one(self) -> bool:
        """Send the next message and return True, or return False if there is none. Log the first failure only."""
        message = self._queue.take()
        if message is None:
            return False
        try:
            async with asyncio.timeout(_SEND_TIMEOUT_S):
                await self._bus.publish(message)
        except Exception as error:  # noqa: BLE001 - the run must not depend on the bus
            if not any(self._failed.values()):
                _log.warning("The telemetry bus failed (%s). Messages are dropped and counted.", error)
            self._failed[message.priority] += 1
        return True
