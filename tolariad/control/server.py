"""The control server: accept clients, bound their number, shut down in order.

Promises: one accept loop, a bounded number of connections, no long work on the event loop. At its end every stream gets
a last reply, and every pending order an outcome. A forked child, such as a DataLoader's worker, lets go of the socket.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
import time
from typing import Any, Final

from journal.fork import abandon_after_fork, close_descriptors
from tolariad.control.connection import Connection, ServerLimits
from tolariad.control.methods import ControlPort, Methods
from tolariad.control.peer import Operators
from tolariad.control.place import BACKLOG, Bound, remove_made
from tolariad.control.wire import own_error

_log: Final = logging.getLogger(__name__)


class ControlServer:
    """Serves `port` on a listening socket: create it, `await start()`, later `await close()`, all on one loop."""

    def __init__(
        self, port: ControlPort, bound: Bound, operators: Operators, *, version: str, limits: ServerLimits | None = None
    ) -> None:
        self._bound = bound
        self._limits = limits or ServerLimits()
        self._methods = Methods(port, operators, self._limits, version=version, clock=time.monotonic)
        self._server: asyncio.Server | None = None
        # The address that the listener was bound to, before its file was renamed; all that it accepts have it too.
        self._address: Final = str(bound.listener.getsockname())
        # Clients that were admitted, and the tasks of all, also of those that are told that there is no room.
        self.connections: Final[set[Connection]] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def set_operators(self, operators: Operators) -> None:
        """Set who may change the run from now on, after the configuration was read again."""
        self._methods.operators = operators

    async def start(self) -> None:
        """Accept clients."""
        self._bound.listener.setblocking(False)
        abandon_after_fork(self)
        loop = asyncio.get_running_loop()
        # Since 3.13 asyncio's loop unlinks the socket's file at its end. One that was passed to us must stay.
        keep = sys.version_info >= (3, 13) and isinstance(loop, asyncio.SelectorEventLoop)
        # The loop calls listen() again. Its default backlog of 100 would refuse a burst of clients with EAGAIN.
        options: dict[str, Any] = {"backlog": BACKLOG} | ({"cleanup_socket": False} if keep else {})
        self._server = await asyncio.start_unix_server(
            self._accept, sock=self._bound.listener, limit=self._limits.message_bytes, **options
        )

    async def close(self) -> None:
        """Accept no more clients, send the last replies, and remove the socket's file if we made it."""
        remove_made(self._bound)
        self._methods.closing.set()
        if self._server is not None:
            self._server.close()
        for end in (Connection.finish, Connection.abort):
            for one in self.connections:
                end(one)
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=self._limits.close_s)
        self._methods.close()

    def abandon_in_child(self) -> None:
        """Close the listener and every connection: a child that outlives the run must not keep its clients waiting.

        They are found by their address, because one that is just being accepted is in no list of ours yet.
        """
        close_descriptors(lambda one: _is_at(self._address, one))

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._methods.closing.is_set():
            writer.transport.abort()  # the loop had accepted it before the end
            return
        try:
            connection = Connection(self._limits, self._methods.handle, self._admit, reader, writer)
        except OSError as error:
            _log.warning("Refused a control client: its credentials cannot be read: %s", error)
            writer.transport.abort()
        else:
            self._tasks.add(connection.task)
            connection.task.add_done_callback(lambda _: self._forget(connection))

    def _forget(self, connection: Connection) -> None:
        self._tasks.discard(connection.task)
        self.connections.discard(connection)

    def _admit(self, connection: Connection) -> None:
        """Count the connection. Raises CallError if this user gets no further one."""
        limits, count, peer = self._limits, len(self.connections), connection.peer
        if count >= limits.connections:
            why = f"{count} clients are already connected; close one"
        elif sum(one.peer.uid == peer.uid for one in self.connections) >= limits.connections_a_user:
            why = f"user {peer.uid} already has {limits.connections_a_user} connections; close one"
        elif count >= limits.connections - limits.connections_kept and not self._methods.operators.allow(peer):
            why = f"{count} clients are connected, and the last {limits.connections_kept} places are for operators"
        else:
            self.connections.add(connection)
            return
        _log.warning("Refused a control client (pid %d): %s", peer.pid, why)
        raise own_error("Refused", why)


def _is_at(address: str, descriptor: int) -> bool:
    """Return whether the descriptor is of a Unix socket with this address of its own. Raises OSError for no socket."""
    found = socket.socket(fileno=descriptor)
    try:
        return found.family == socket.AF_UNIX and found.getsockname() == address
    finally:
        found.detach()
