"""`TelemetryCollector`: a bounded queue before one receiver of telemetry, and the tasks that drain it.

Promises: `offer` never waits, so the thread that records a run is delayed by no receiver. A receiver that is slow, gone
or full costs messages, which are counted by priority, and nothing else (P6). A message of priority EMERGENCY passes the
queue: another task sends it while a `publish` may still hang. A warning is logged at every 1 000th lost message.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final, Protocol

import msgspec

from tolariad.core.calc.priorities import TelemetryPriority
from tolariad.core.calc.text.plain import safe_lines
from tolariad.telemetry.backlog import Backlog
from tolariad.telemetry.messages import TelemetryMessage

_log: Final = logging.getLogger(__name__)

WARNED_EVERY: Final = 1000
# Messages of so many seconds are sent together: a wake-up of the loop for each step would cost more than the message.
_GATHER_S: Final = 0.1
_AT_ONCE: Final = 256
_EMERGENCIES_MAX: Final = 1000
_EMERGENCY_S: Final = 5.0
_AGAIN_S: Final = 1.0
_AGAIN_MAX_S: Final = 30.0


class Unreachable(Exception):
    """The receiver cannot take messages now. The same messages are sent again later."""


class Receiver(Protocol):
    """What takes the messages. Both methods return within a stated time, and raise Unreachable to be called again."""

    async def publish(self, messages: Sequence[TelemetryMessage]) -> None:
        """Take these messages, the most important first."""

    async def send_immediate(self, message: TelemetryMessage) -> None:
        """Take a message that passes the queue."""

    async def close(self) -> None:
        """End what is in progress."""


class TelemetryCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The messages of one receiver so far. `why`: the reason why it takes none at present."""

    to: str
    waiting: int
    sent: int
    dropped: int
    thinned: int
    why: str | None = None


class TelemetryCollector:
    """The queue before `oona_bus`, or before another receiver. One thread may call `offer`, the loop does the rest."""

    def __init__(
        self, oona_bus: Receiver, max_queue_size: int = 10_000, *, name: str = "bus", at_once: int = _AT_ONCE
    ) -> None:
        """`at_once`: the most messages in one call of `publish`."""
        self._bus = oona_bus
        self.name = name
        self._at_once = at_once
        self._backlog: Backlog[TelemetryMessage] = Backlog(max_queue_size)
        self._emergencies: deque[TelemetryMessage] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._woken, self._alarm, self._ending = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._is_asleep = False
        self._in_flight = 0
        self._sent = 0
        # Those that the receiver refused, and emergencies without room.
        self._lost = 0
        self._warned = 0
        self._why: str | None = None

    # -- the thread that has the messages ------------------------------------------------------------------------------

    def offer(
        self, message: TelemetryMessage, *, one_in: int = 1, least: TelemetryPriority = TelemetryPriority.LOW
    ) -> None:
        """Queue a message, or count it as lost. `one_in`: below HIGH, only every so many-th is taken.

        `least`: it is queued with this priority if its own is lower.
        """
        if message.priority is TelemetryPriority.EMERGENCY:
            if len(self._emergencies) >= _EMERGENCIES_MAX:
                self._lost += 1
            else:
                self._emergencies.append(message)
                self._wake(self._alarm)
            return
        self._backlog.offer(max(message.priority, least), message, one_in=one_in)
        dropped = self.dropped_count
        if dropped // WARNED_EVERY > self._warned:
            self._warned = dropped // WARNED_EVERY
            _log.warning("Dropped %d telemetry messages to %s. The run is not affected", dropped, self.name)
        if self._is_asleep:
            self._is_asleep = False
            self._wake(self._woken)

    def _wake(self, event: asyncio.Event) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(event.set)

    @property
    def dropped_count(self) -> int:
        """How many messages were lost."""
        return self._lost + self._backlog.dropped.total()

    @property
    def counts(self) -> TelemetryCounts:
        """What became of the messages so far. Any thread may ask."""
        waiting = len(self._backlog) + len(self._emergencies) + self._in_flight
        return TelemetryCounts(
            to=self.name,
            waiting=waiting,
            sent=self._sent,
            dropped=self.dropped_count,
            thinned=self._backlog.thinned,
            why=self._why,
        )

    # -- a program of its own ------------------------------------------------------------------------------------------

    async def collect_telemetry(
        self, priority: TelemetryPriority, source: str, event_type: str, payload: dict[str, object]
    ) -> None:
        """Queue a message; send it at once, for 5 s at most, if it is an EMERGENCY. Never raises for the receiver."""
        message = TelemetryMessage(time.time_ns(), priority, source, event_type, payload)
        if priority is not TelemetryPriority.EMERGENCY:
            self.offer(message)
            return
        try:
            async with asyncio.timeout(_EMERGENCY_S):
                await self._bus.send_immediate(message)
        except Exception as error:  # noqa: BLE001 - a fault of a receiver must not reach who reports
            self._lost += 1
            self._say(error, "An emergency was not sent")
        else:
            self._sent += 1

    # -- the loop ------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to send, on the running loop."""
        self._loop = asyncio.get_running_loop()
        self._is_asleep = True
        self._woken.set()
        self._alarm.set()
        self._tasks = [
            self._loop.create_task(self._drain(), name=f"telemetry to {self.name}"),
            self._loop.create_task(self._send_emergencies(), name=f"emergencies to {self.name}"),
        ]

    async def close(self, limit_s: float) -> None:
        """Send what waits, for `limit_s` at most, and end."""
        self._ending.set()
        self._woken.set()
        self._alarm.set()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=limit_s)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=1.0)
        if left := self.counts.waiting:
            _log.warning("%d telemetry messages to %s were not sent before the end", left, self.name)
        await self._bus.close()

    async def _drain(self) -> None:
        while True:
            await self._woken.wait()
            self._woken.clear()
            await self._pause(_GATHER_S)
            # Before the queue is read: whatever comes later wakes this task again.
            self._is_asleep = True
            while batch := self._backlog.take(self._at_once):
                self._in_flight += len(batch)
                await self._deliver(batch, self._bus.publish)
                self._in_flight -= len(batch)
            if self._ending.is_set():
                return

    async def _send_emergencies(self) -> None:
        while True:
            await self._alarm.wait()
            self._alarm.clear()
            while self._emergencies:
                await self._deliver([self._emergencies[0]], lambda batch: self._bus.send_immediate(batch[0]))
                self._emergencies.popleft()
            if self._ending.is_set():
                return

    async def _deliver(
        self, batch: list[TelemetryMessage], send: Callable[[list[TelemetryMessage]], Awaitable[None]]
    ) -> None:
        """Send the batch, again and again while the receiver cannot be reached."""
        pause_s = _AGAIN_S
        while True:
            try:
                await send(batch)
            except Unreachable as error:
                self._say(error, "It is tried again, and the run goes on")
                if not self._ending.is_set():
                    await self._pause(pause_s)
                    pause_s = min(2 * pause_s, _AGAIN_MAX_S)
                    continue
                self._lost += len(batch)
            except Exception as error:  # noqa: BLE001 - a fault of a receiver must not end what sends to it
                self._lost += len(batch)
                self._say(error, f"{len(batch)} of them are lost. The run is not affected")
            else:
                self._sent += len(batch)
                if self._why is not None:
                    self._why = None
                    _log.warning("Telemetry is sent to %s again; %d messages were lost", self.name, self.dropped_count)
            return

    async def _pause(self, seconds: float) -> None:
        """Wait, or until the end."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ending.wait()

    def _say(self, error: Exception, after: str) -> None:
        """Log why messages are not sent, once for each reason."""
        why = safe_lines(str(error) or repr(error))
        if why != self._why:
            self._why = why
            _log.warning("Telemetry cannot be sent to %s: %s. %s", self.name, why, after)
