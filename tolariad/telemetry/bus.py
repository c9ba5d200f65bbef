"""The bus (Oona) on Redis streams, extra `bus`.

Promises: a call ends within `CALL_S`, whatever the server does. Each message is written once, if the server answers. If
a call fails on the way, nobody knows what was written: before the same messages are written again, the newest entries
of the streams are compared with them by their ids. Streams are bounded. On a server without memory our own streams are
cut to a half. Urgent messages go to a stream of their own, 120 a minute at most, so that it cannot become a flood.

Sources: fact sheet D.3; redis-py makes eleven tries a call unless it is told not to, and a server that is full refuses
XADD with MAXLEN before it trims, but takes XTRIM.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from tolariad.core.calc.token_bucket import TokenBucket
from tolariad.loop_files import in_thread
from tolariad.telemetry.collector import Unreachable
from tolariad.telemetry.messages import TelemetryMessage

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from tolariad.telemetry.envelopes import Entry

CALL_S: Final = 5.0
_SOCKET_S: Final = 2.0
_URGENT_PER_S: Final = 2.0
_URGENT_BURST: Final = 120
# Entries of a stream; Redis cuts whole blocks, so it may hold some more.
LENGTH_MAX: Final = 100_000
# Other runs write into the same streams: so many times the batch are looked at after a failure.
_LOOKED_AT: Final = 4


class BusUnusable(Exception):
    """The bus cannot work as it is configured or installed."""


class RedisBus:
    """A receiver of telemetry. Belongs to one loop."""

    def __init__(
        self,
        url: str,
        password: Callable[[], str] | None,
        encode: Callable[[Sequence[TelemetryMessage]], list[Entry]],
    ) -> None:
        """`password` reads the secret, and `encode` makes the entries; both are called in a thread."""
        self._url = url
        self._password = password
        self._encode = encode
        self._client: Redis | None = None
        self._making = asyncio.Lock()
        self._urgent = TokenBucket(_URGENT_PER_S, _URGENT_BURST)
        # Ids of messages that were written in a call that failed afterwards.
        self._written: set[str] = set()
        # Ids of those of which nobody knows.
        self._unsure: set[str] = set()

    async def publish(self, messages: Sequence[TelemetryMessage]) -> None:
        """Write these messages. Raises Unreachable, BusUnusable."""
        await self._write(messages)

    async def send_immediate(self, message: TelemetryMessage) -> None:
        """Write a message at once, on a connection of its own if another call hangs. Raises as `publish`."""
        await self._write([message])

    async def close(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            with suppress(Exception):  # the server may be gone
                async with asyncio.timeout(1.0):
                    await client.aclose()

    async def _write(self, messages: Sequence[TelemetryMessage]) -> None:
        entries = await in_thread(self._encode, messages)
        ids = {one.event_id for one in entries}
        client = await self._connected()
        from redis.exceptions import RedisError

        try:
            async with asyncio.timeout(CALL_S):
                if self._unsure & ids:
                    await self._look(client, entries)
                    self._unsure -= ids
                left = [one for one in entries if one.event_id not in self._written]
                if refused := await self._added(client, left):
                    await self._trim(client)
                    refused = await self._added(client, refused)
                if refused:
                    raise Unreachable("the server's memory is full (maxmemory)")
        except (RedisError, OSError, TimeoutError, ValueError) as error:
            # It may have been written all the same.
            self._unsure |= ids - self._written
            await self.close()
            raise Unreachable(_reason(error)) from error
        self._written -= ids

    async def _added(self, client: Redis, entries: list[Entry]) -> list[Entry]:
        """Add the entries and return those that the server refused because it is full."""
        pipe = client.pipeline(transaction=False)
        for one in entries:
            stream = self._stream_of(one)
            pipe.xadd(stream, {"id": one.event_id, "envelope": one.envelope}, maxlen=LENGTH_MAX, approximate=True)
        results = await pipe.execute(raise_on_error=False) if entries else []
        refused, failed = [], None
        for one, result in zip(entries, results, strict=True):
            if not isinstance(result, Exception):
                self._written.add(one.event_id)
            elif "OOM" in str(result) or type(result).__name__ == "OutOfMemoryError":
                refused.append(one)
            else:
                failed = result
        if failed is not None:
            raise failed
        return refused

    def _stream_of(self, entry: Entry) -> str:
        from tolariad.telemetry.envelopes import EMERGENCY

        is_urgent = entry.is_urgent and not self._urgent.take(time.monotonic())
        return EMERGENCY if is_urgent else entry.stream

    @staticmethod
    async def _trim(client: Redis) -> None:
        """Cut our streams to a half."""
        from tolariad.telemetry.envelopes import EMERGENCY, NORMAL, TELEMETRY

        for stream in (TELEMETRY, NORMAL, EMERGENCY):
            length = await client.xlen(stream)
            await client.xtrim(stream, maxlen=length // 2, approximate=False)

    async def _look(self, client: Redis, entries: list[Entry]) -> None:
        """Find out which of the entries were written in a call that failed."""
        from tolariad.telemetry.envelopes import EMERGENCY

        wanted = {one.event_id for one in entries}
        for stream in {one.stream for one in entries} | {EMERGENCY for one in entries if one.is_urgent}:
            newest: Any = await client.xrevrange(stream, count=_LOOKED_AT * len(entries))
            ids = {fields.get(b"id", b"").decode("ascii", "replace") for _, fields in newest}
            self._written |= ids & wanted

    async def _connected(self) -> Redis:
        async with self._making:
            if self._client is None:
                self._client = await in_thread(self._made)
            return self._client

    def _made(self) -> Redis:
        try:
            from redis.asyncio import Redis
            from redis.asyncio.retry import Retry
            from redis.backoff import NoBackoff
        except ImportError as error:
            raise BusUnusable("it needs the package redis: pip install 'tolariad[bus]'") from error
        try:
            return Redis.from_url(
                self._url,
                password=self._password() if self._password is not None else None,
                retry=Retry(NoBackoff(), 0),
                socket_timeout=_SOCKET_S,
                socket_connect_timeout=_SOCKET_S,
            )
        except ValueError as error:
            raise BusUnusable(f"telemetry.bus_url: {error}") from error


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError) or "Timeout" in type(error).__name__:
        return "the server does not answer in time"
    if isinstance(error, ValueError):
        return "what the server answers is not the protocol of Redis"
    return str(error) or type(error).__name__
