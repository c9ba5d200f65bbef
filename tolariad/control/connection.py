"""One client: bytes in, calls in order, replies out, all of it bounded.

Promises: calls are answered strictly in their order; at most `calls` of them and one message wait, then reading stops;
nothing is written while the client does not read; a client that stalls, floods or sends what is no message gets one
error or is disconnected, and nobody else notices. It must not know: what the methods do.
"""

from __future__ import annotations

import asyncio
import logging
import select
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Protocol, cast

import msgspec

from tolariad.control.limits import Limits
from tolariad.control.peer import Peer, peer_of
from tolariad.control.wire import END, Call, CallError, error_bytes, own_error, read_call, reply_bytes, service_error

_log: Final = logging.getLogger(__name__)


class Reply(Protocol):
    """Where a method's answers go."""

    @property
    def gone(self) -> bool:
        """Whether the client is certainly not there any more: a stream may end."""

    async def send(self, parameters: msgspec.Struct | Mapping[str, Any], *, continues: bool = False) -> None:
        """Write one reply and wait until the client has room for the next."""


Handler = Callable[[Call, Peer, Reply], Awaitable[None]]


class Slow(Exception):
    """The client has read nothing for too long."""


class Connection(asyncio.Protocol):
    """A client's connection; `closed` is called once when it is over."""

    def __init__(self, limits: Limits, handler: Handler, register: Callable[[Connection], Callable[[], None]]) -> None:
        self._limits = limits
        self._handler = handler
        self._register = register
        self._unregister: Callable[[], None] | None = None
        self._buffer = bytearray()
        self._searched = 0
        # Calls in their order with their size; an error ends the connection when its turn comes.
        self._calls: deque[tuple[Call | CallError, int]] = deque()
        self._waiting_bytes = 0
        self._task: asyncio.Task[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._ended = False
        self._reading = True
        self._muted = False
        self._last_use = 0.0

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Look at who it is and whether there is room."""
        self._loop = asyncio.get_running_loop()
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=self._limits.write_bytes)
        self._last_use = self._loop.time()
        try:
            self._descriptor = transport.get_extra_info("socket").fileno()
            self._peer = peer_of(self._descriptor)
            self._unregister = self._register(self)
        except CallError as full:
            self._ended = True
            self._transport.write(error_bytes(full))
            self._transport.close()
            return
        except OSError as error:
            _log.warning("a control client was refused: its credentials cannot be read: %s", error)
            self._transport.abort()
            return
        self._idle = self._loop.call_later(self._limits.idle_s, self._look_idle)

    def data_received(self, data: bytes) -> None:
        """Take what came, as far as there is room for calls."""
        if self._ended:
            return
        self._last_use = self._loop.time()
        self._buffer += data
        self._parse()

    def eof_received(self) -> bool:
        """The client has said all it will; it still gets its answers."""
        self._ended = True
        if self._task is None:
            self._finish_half_closed()
        return True

    def pause_writing(self) -> None:
        """The client does not read."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """It reads again."""
        self._writable.set()

    def connection_lost(self, error: Exception | None) -> None:
        """Whatever was under way for this client is dropped; an order that was handed over stands."""
        del error
        self._ended = True
        self._calls.clear()
        self._buffer.clear()
        if self._task is not None:
            self._task.cancel()
        if self._unregister is not None:
            self._idle.cancel()
            self._unregister()
            self._unregister = None

    # What methods and the server call.

    @property
    def gone(self) -> bool:
        """Whether both directions are closed. One that only ended its own may still be reading."""
        if self._transport.is_closing():
            return True
        if not self._ended:
            return False
        look = select.poll()
        look.register(self._descriptor, 0)
        return any(events & select.POLLHUP for _, events in look.poll(0))

    @property
    def peer(self) -> Peer:
        """Who is at the other end; known once the connection is made."""
        return self._peer

    @property
    def task(self) -> asyncio.Task[None] | None:
        """The calls being answered now."""
        return self._task

    def close(self) -> None:
        """Write what is written already, then end."""
        self._ended = True
        self._calls.clear()
        if not self._transport.is_closing():
            self._transport.close()

    def abort(self) -> None:
        """End at once."""
        self._transport.abort()

    # Messages in.

    def _parse(self) -> None:
        most = self._limits.message_bytes
        while self._has_room():
            end = self._buffer.find(END, self._searched)
            if (end if end >= 0 else len(self._buffer)) > most:
                self._take_last(service_error("InvalidParameter", parameter="message"))
                break
            if end < 0:
                self._searched = len(self._buffer)
                break
            self._take(end)
        self._set_reading(wanted=self._has_room())
        self._go_on()

    def _go_on(self) -> None:
        if self._calls and self._task is None:
            self._task = self._loop.create_task(self._answer_all())

    def _has_room(self) -> bool:
        """A bounded number of calls waits, and no more bytes of them than one message may have."""
        return len(self._calls) < self._limits.calls and self._waiting_bytes <= self._limits.message_bytes

    def _set_reading(self, *, wanted: bool) -> None:
        if wanted == self._reading or self._ended:
            return
        self._reading = wanted
        if wanted:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def _take(self, end: int) -> None:
        """Queue the message that ends at `end`."""
        message = self._buffer[:end]
        del self._buffer[: end + 1]
        self._searched = 0
        try:
            self._calls.append((read_call(message), end))
            self._waiting_bytes += end
        except CallError as error:
            self._take_last(error)

    def _take_last(self, error: CallError) -> None:
        """One clear error after the answers before it, then the end: what follows cannot be told apart any more."""
        self._calls.append((error, 0))
        self._set_reading(wanted=False)
        self._ended = True
        self._buffer.clear()
        self._searched = 0

    def _finish_half_closed(self) -> None:
        if self._buffer:
            self._take_last(service_error("InvalidParameter", parameter="message"))
            self._go_on()
        else:
            self._transport.close()

    # Answers out.

    async def _answer_all(self) -> None:
        try:
            while self._calls:
                call, size = self._calls.popleft()
                self._waiting_bytes -= size
                if isinstance(call, CallError):
                    self._muted = False
                    await self._write(error_bytes(call))
                    break
                await self._answer(call)
                # Many calls in one message burst must not hold up the loop: everybody else has a turn in between.
                await asyncio.sleep(0)
                self._last_use = self._loop.time()
                if not self._transport.is_closing():
                    self._parse()
        except Slow:
            _log.info(
                "a control client (pid %d) that read nothing for %g s is dropped", self._peer.pid, self._limits.stall_s
            )
            self._transport.abort()
        finally:
            self._task = None
        if self._ended and not self._transport.is_closing():
            self._finish_half_closed()

    async def _answer(self, call: Call) -> None:
        self._muted = bool(call.oneway)
        try:
            if call.upgrade:
                raise service_error("MethodNotImplemented", method=call.method)
            await self._handler(call, self._peer, self)
        except CallError as error:
            await self._write(error_bytes(error))
        except (Slow, asyncio.CancelledError):
            raise
        except Exception:  # noqa: BLE001 -- a fault here is ours: the run goes on, and the client learns that there is one
            _log.exception("control method %s failed", call.method)
            await self._write(error_bytes(own_error("Refused", "an error inside tolariad; see its log")))

    async def send(self, parameters: msgspec.Struct | Mapping[str, Any], *, continues: bool = False) -> None:
        """Write one reply, once the client has room for it."""
        await self._write(reply_bytes(parameters, continues=continues))

    async def _write(self, message: bytes) -> None:
        if self._muted or self._transport.is_closing():
            return
        if not self._writable.is_set():
            await self.room()
        self._transport.write(message)
        self._last_use = self._loop.time()

    async def room(self) -> None:
        """Wait until the client reads. Raises Slow."""
        try:
            async with asyncio.timeout(self._limits.stall_s):
                await self._writable.wait()
        except TimeoutError as error:
            raise Slow from error

    def _look_idle(self) -> None:
        left_s = self._last_use + self._limits.idle_s - self._loop.time()
        if left_s <= 0 and self._task is None:
            self._transport.close()
        else:
            self._idle = self._loop.call_later(max(left_s, self._limits.idle_s / 4), self._look_idle)
