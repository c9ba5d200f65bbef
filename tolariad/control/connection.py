"""The connection of one client: read calls, answer them in order, write replies, with a bound on everything.

Promises: calls are answered strictly in order. At most `calls` of them and one message are pending; then reading stops.
Nothing is written while the client does not read. A client that stalls, floods or sends an invalid message gets one
error or is disconnected. Other clients are not affected.
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
    """The destination of a method's answers."""

    @property
    def gone(self) -> bool:
        """Whether the client has certainly disconnected, so that a stream may end."""

    async def send(self, parameters: msgspec.Struct | Mapping[str, Any], *, continues: bool = False) -> None:
        """Write one reply and wait until the client has room for the next."""


Handler = Callable[[Call, Peer, Reply], Awaitable[None]]


class Slow(Exception):
    """The client has not read for longer than `stall_s`."""


class Connection(asyncio.Protocol):
    """A client's connection. `register` returns the function that is called once when the connection is over."""

    def __init__(self, limits: Limits, handler: Handler, register: Callable[[Connection], Callable[[], None]]) -> None:
        self._limits = limits
        self._handler = handler
        self._register = register
        self._unregister: Callable[[], None] | None = None
        self._buffer = bytearray()
        self._searched = 0
        # Pending calls with their size, in order. An error ends the connection when its turn comes.
        self._calls: deque[tuple[Call | CallError, int]] = deque()
        self._waiting_bytes = 0
        self._task: asyncio.Task[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._ended = False
        self._reading = True
        self._muted = False
        self._last_use = 0.0

    # Called by asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Identify the client, and refuse it if there is no room."""
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
            _log.warning("Refused a control client: its credentials cannot be read: %s", error)
            self._transport.abort()
            return
        self._idle = self._loop.call_later(self._limits.idle_s, self._look_idle)

    def data_received(self, data: bytes) -> None:
        """Parse the bytes into calls, as far as there is room for calls."""
        if self._ended:
            return
        self._last_use = self._loop.time()
        self._buffer += data
        self._parse()

    def eof_received(self) -> bool:
        """Stop reading: the client sends nothing more. It still gets its answers."""
        self._ended = True
        if self._task is None:
            self._finish_half_closed()
        return True

    def pause_writing(self) -> None:
        """Hold back writes: the client does not read."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Write again: the client reads."""
        self._writable.set()

    def connection_lost(self, error: Exception | None) -> None:
        """Drop the pending calls of this client. An order that the kernel already has stays valid."""
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

    # Called by methods and the server.

    @property
    def gone(self) -> bool:
        """Whether both directions are closed. A client that closed only its own direction may still be reading."""
        if self._transport.is_closing():
            return True
        if not self._ended:
            return False
        look = select.poll()
        look.register(self._descriptor, 0)
        return any(events & select.POLLHUP for _, events in look.poll(0))

    @property
    def peer(self) -> Peer:
        """The client's credentials. Available once the connection is made."""
        return self._peer

    @property
    def task(self) -> asyncio.Task[None] | None:
        """The task that answers calls, or None if none is being answered."""
        return self._task

    def close(self) -> None:
        """Flush what is buffered for the client, then close."""
        self._ended = True
        self._calls.clear()
        if not self._transport.is_closing():
            self._transport.close()

    def abort(self) -> None:
        """Close at once; what is buffered is lost."""
        self._transport.abort()

    # Reading messages.

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
        """Return whether another call may be queued: the calls are bounded in number and in bytes."""
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
        """Queue `error` as the last answer and read no more: the start of the next message can no longer be found."""
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

    # Writing answers.

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
                # Let other clients have a turn: a burst of many calls must not hold up the loop.
                await asyncio.sleep(0)
                self._last_use = self._loop.time()
                if not self._transport.is_closing():
                    self._parse()
        except Slow:
            _log.info(
                "Disconnected a control client (pid %d): it has read nothing for %g s",
                self._peer.pid,
                self._limits.stall_s,
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
        except Exception:  # noqa: BLE001 -- a bug in a method must not end the run; the client gets an error
            _log.exception("Control method %s failed", call.method)
            await self._write(error_bytes(own_error("Refused", "internal error in tolariad; its log has the details")))

    async def send(self, parameters: msgspec.Struct | Mapping[str, Any], *, continues: bool = False) -> None:
        """Write one reply as soon as the client has room for it."""
        await self._write(reply_bytes(parameters, continues=continues))

    async def _write(self, message: bytes) -> None:
        if self._muted or self._transport.is_closing():
            return
        if not self._writable.is_set():
            await self.room()
        self._transport.write(message)
        self._last_use = self._loop.time()

    async def room(self) -> None:
        """Wait until the client reads. Raises Slow after `stall_s`."""
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
