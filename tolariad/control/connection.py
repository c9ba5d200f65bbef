"""The connection of one client: read calls, answer them in order, write replies, with a bound on everything.

Promises: calls are answered strictly in order. At most two messages' bytes are pending; then reading stops. Nothing is
written while the client does not read. A client that stalls, floods or sends an invalid message gets one error or is
disconnected. Other clients are not affected.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import select
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec

from tolariad.control.peer import peer_of
from tolariad.control.wire import END, Call, CallError, error_bytes, own_error, read_call, reply_bytes, service_error

_log: Final = logging.getLogger(__name__)


class ServerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Every bound of a control server: no client costs the daemon more.

    `message_bytes` is for each connection, `changes_per_s` for each user id.

    One user gets at most `connections_a_user` of the `connections`. The last `connections_kept` are kept for operators.
    """

    message_bytes: int = 1 << 20
    connections: int = 128
    connections_a_user: int = 64
    connections_kept: int = 32
    idle_s: float = 600.0
    stall_s: float = 60.0
    write_bytes: int = 1 << 18
    changes_per_s: float = 10.0
    changes_burst: int = 40
    answer_s: float = 30.0
    close_s: float = 1.0


class Connection:
    """A client's connection, served by `task`. Raises OSError if the client's credentials cannot be read."""

    def __init__(
        self,
        limits: ServerLimits,
        handler: Callable[[Call, Connection], Awaitable[None]],
        admit: Callable[[Connection], None],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Serve the streams. `admit` raises CallError if there is no room; the client then gets only this error."""
        descriptor = writer.get_extra_info("socket").fileno()
        self.peer: Final = peer_of(descriptor)
        self._hang_up = select.poll()
        self._hang_up.register(descriptor, 0)
        self._limits = limits
        self._handler = handler
        self._reader = reader
        self._writer = writer
        self._muted = False
        self._answering = False
        self._finishing = False
        writer.transport.set_write_buffer_limits(high=limits.write_bytes)
        self.task: Final = asyncio.get_running_loop().create_task(self._serve(admit))

    def finish(self) -> None:
        """End after the call that is being answered; if there is none, end now."""
        self._finishing = True
        if not self._answering:
            self.task.cancel()

    def abort(self) -> None:
        """End now; what is buffered is lost. An order that the kernel already has stays valid."""
        self._writer.transport.abort()
        self.task.cancel()

    async def _serve(self, admit: Callable[[Connection], None]) -> None:
        try:
            admit(self)
            # Once the connection is lost, the calls that are still buffered are dropped.
            while not (self._finishing or self._writer.is_closing()) and (call := await self._next()) is not None:
                self._answering = True
                await self._answer(call)
                self._answering = False
                # Let other clients have a turn: a burst of many calls must not hold up the loop.
                await asyncio.sleep(0)
        except CallError as error:
            # After an invalid message, the start of the next one can no longer be found.
            self._muted = False
            await self._write(error_bytes(error))
        finally:
            self._writer.close()
            with contextlib.suppress(OSError):
                async with asyncio.timeout(self._limits.stall_s):
                    await self._writer.wait_closed()
            self._writer.transport.abort()

    async def _next(self) -> Call | None:
        """Return the next call; None if the client has closed its direction, or was idle for too long.

        Raises CallError if the message is too long, cut short, or not a call.
        """
        try:
            async with asyncio.timeout(self._limits.idle_s):
                message = await self._reader.readuntil(END)
        except OSError:
            return None
        except asyncio.IncompleteReadError as cut:
            if not cut.partial:
                return None
            raise service_error("InvalidParameter", parameter="message") from cut
        except asyncio.LimitOverrunError as long:
            raise service_error("InvalidParameter", parameter="message") from long
        return read_call(message[:-1])

    async def _answer(self, call: Call) -> None:
        self._muted = bool(call.oneway)
        try:
            if call.upgrade:
                raise service_error("MethodNotImplemented", method=call.method)
            await self._handler(call, self)
        except CallError as error:
            await self._write(error_bytes(error))
        except Exception:  # noqa: BLE001 -- a bug in a method must not end the run; the client gets an error
            _log.exception("Control method %s failed", call.method)
            await self._write(error_bytes(own_error("Refused", "internal error in tolariad; its log has the details")))

    # Called by methods.

    @property
    def gone(self) -> bool:
        """Whether both directions are closed. A client that closed only its own direction may still be reading."""
        return self._writer.is_closing() or bool(self._hang_up.poll(0))

    async def send(self, parameters: msgspec.Struct | Mapping[str, Any], *, continues: bool = False) -> None:
        """Write one reply as soon as the client has room for it; drop it if the client has gone."""
        await self._write(reply_bytes(parameters, continues=continues))

    async def _write(self, message: bytes) -> None:
        if self._muted or self._writer.is_closing():
            return
        try:
            async with asyncio.timeout(self._limits.stall_s):
                await self._writer.drain()
            self._writer.write(message)
        except TimeoutError:
            stalled_s = self._limits.stall_s
            _log.info("Disconnected a control client (pid %d): it has read nothing for %g s", self.peer.pid, stalled_s)
            self._writer.transport.abort()
        except ConnectionError:
            return  # the client has gone; there is nobody to answer
