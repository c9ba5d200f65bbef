"""The control server: accept clients, bound their number, shut down in order.

Promises: one accept loop, a bounded number of connections, no long work on the event loop. At its end every stream gets
a last reply, and every pending order an outcome.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from tolariad.control.connection import Connection
from tolariad.control.limits import Limits
from tolariad.control.methods import Methods
from tolariad.control.peer import Operators, Peer
from tolariad.control.place import BACKLOG, Bound, remove_made
from tolariad.control.port import ControlPort
from tolariad.control.wire import own_error

_log: Final = logging.getLogger(__name__)


class ControlServer:
    """Serves `port` on a listening socket: create it, `await start()`, later `await close()`, all on one loop."""

    def __init__(
        self, port: ControlPort, bound: Bound, operators: Operators, *, version: str, limits: Limits | None = None
    ) -> None:
        self._bound = bound
        self._limits = limits or Limits()
        self._methods = Methods(port, operators, self._limits, version=version, clock=time.monotonic)
        self._connections: set[Connection] = set()
        self._server: asyncio.Server | None = None
        self._empty = asyncio.Event()

    @property
    def connections(self) -> int:
        """The number of connected clients."""
        return len(self._connections)

    def set_operators(self, operators: Operators) -> None:
        """Set who may change the run from now on, after the configuration was read again."""
        self._methods.operators = operators

    async def start(self) -> None:
        """Accept clients."""
        self._bound.listener.setblocking(False)
        loop = asyncio.get_running_loop()
        # Since 3.13 asyncio's loop unlinks the socket's file at its end. One that was passed to us must stay.
        keep = sys.version_info >= (3, 13) and isinstance(loop, asyncio.SelectorEventLoop)
        # The loop calls listen() again. Its default backlog of 100 would refuse a burst of clients with EAGAIN.
        options: dict[str, Any] = {"backlog": BACKLOG} | ({"cleanup_socket": False} if keep else {})
        self._server = await loop.create_unix_server(self._connection, sock=self._bound.listener, **options)

    async def close(self) -> None:
        """Accept no more clients, send the last replies, and remove the socket's file if we made it."""
        remove_made(self._bound)
        self._methods.closing.set()
        if self._server is not None:
            self._server.close()
        tasks = {one.task for one in self._connections if one.task is not None}
        if tasks:
            await asyncio.wait(tasks, timeout=self._limits.close_s)
        for one in tuple(self._connections):
            one.close()
        if self._connections:
            self._empty.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._limits.close_s):
                    await self._empty.wait()
        for one in tuple(self._connections):
            one.abort()
        self._methods.close()

    def _connection(self) -> Connection:
        return Connection(self._limits, self._methods.handle, self._register)

    def _register(self, connection: Connection) -> Callable[[], None]:
        why = self._no_room_for(connection.peer)
        if why:
            _log.warning("Refused a control client (pid %d): %s", connection.peer.pid, why)
            raise own_error("Refused", why)
        self._connections.add(connection)
        return lambda: self._forget(connection)

    def _no_room_for(self, peer: Peer) -> str:
        """Return why this user gets no further connection, or the empty string if it gets one."""
        limits, count = self._limits, len(self._connections)
        if count >= limits.connections:
            return f"{count} clients are already connected; close one"
        if sum(one.peer.uid == peer.uid for one in self._connections) >= limits.connections_a_user:
            return f"user {peer.uid} already has {limits.connections_a_user} connections; close one"
        if count >= limits.connections - limits.connections_kept and not self._methods.operators.allow(peer):
            return f"{count} clients are connected, and the last {limits.connections_kept} places are for operators"
        return ""

    def _forget(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._empty.set()
