"""Telemetry on its way out: collected without waiting, sent by one task, its losses counted.

Promises: nothing here is ever waited for by training, and a bus that is slow, down or broken costs messages, never more
(P6). It must not know: what the bus is made of.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final, Protocol

from tolariad.core.telemetry import TelemetryMessage, TelemetryPriority
from tolariad.telemetry.queue import TelemetryQueue

_log: Final = logging.getLogger(__name__)

_SEND_TIMEOUT_S: Final = 5.0
# How long an idle sender sleeps at most: `offer` from another thread cannot wake the loop without touching it.
_IDLE_S: Final = 0.25


class OonaBus(Protocol):
    """Where messages go."""

    async def publish(self, message: TelemetryMessage) -> None:
        """Send one message. May raise anything: the message then counts as dropped."""


class TelemetryCollector:
    """The bounded queue before the bus."""

    def __init__(self, oona_bus: OonaBus, max_queue_size: int = 10000) -> None:
        self._bus = oona_bus
        self._queue = TelemetryQueue(max_queue_size)
        self._failed = dict.fromkeys(TelemetryPriority, 0)
        self._told: dict[TelemetryPriority, int] = dict.fromkeys(TelemetryPriority, 0)
        self._sampling = 1
        self._sampled = 0

    def sample(self, one_in: int) -> None:
        """From now on keep one in so many of the messages below HIGH; what is left out by that is no loss, and not counted."""
        if one_in != self._sampling:
            self._sampling, self._sampled = one_in, 0

    def offer(
        self, priority: TelemetryPriority, source: str, event_type: str, payload: dict[str, object], wall_ns: int = 0
    ) -> None:
        """Queue one message from any thread; never waits. `wall_ns` 0 means now."""
        if self._sampling > 1 and priority < TelemetryPriority.HIGH:
            self._sampled += 1
            if self._sampled % self._sampling != 1:
                return
        self._queue.put(TelemetryMessage(wall_ns or time.time_ns(), priority, source, event_type, payload))

    async def collect_telemetry(
        self, priority: TelemetryPriority, source: str, event_type: str, payload: dict[str, object]
    ) -> None:
        """Queue one message; a coroutine only because its callers are, it never waits."""
        self.offer(priority, source, event_type, payload)

    @property
    def dropped_count(self) -> int:
        """Messages that never reached the bus, of all priorities, since the start."""
        return sum(self._dropped().values())

    @property
    def waiting(self) -> int:
        """Messages that wait for the bus."""
        return len(self._queue)

    def _dropped(self) -> dict[TelemetryPriority, int]:
        return {priority: count + self._failed[priority] for priority, count in self._queue.dropped().items()}

    def take_dropped(self) -> dict[str, int]:
        """Drops since the last call by priority name, without the zeros: what the journal is told once a minute."""
        now = self._dropped()
        fresh = {one.name: now[one] - self._told[one] for one in now if now[one] > self._told[one]}
        self._told = now
        return fresh

    async def run(self) -> None:
        """Send what is queued until cancelled."""
        while True:
            # A bus that never suspends would otherwise keep the loop, and this task's cancellation, until all is sent.
            pause_s = 0.0 if await self.send_one() else _IDLE_S
            await asyncio.sleep(pause_s)

    async def send_one(self) -> bool:
        """Send the next message, if there is one. A failure of the bus drops that message and says so once."""
        message = self._queue.take()
        if message is None:
            return False
        try:
            async with asyncio.timeout(_SEND_TIMEOUT_S):
                await self._bus.publish(message)
        except Exception as error:  # noqa: BLE001  whatever a bus raises, the run goes on
            if not any(self._failed.values()):
                _log.warning("the telemetry bus fails (%s); messages are dropped and counted", error)
            self._failed[message.priority] += 1
        return True
