"""A synchronous client of the control socket. It uses plain sockets and JSON, and loads quickly.

Promises: a call returns the reply's parameters or raises. A stream yields replies until the last one. Replies are never
mixed up.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Self

_CHUNK_BYTES: Final = 1 << 16
_REPLY_BYTES_MAX: Final = 1 << 26


class NotReachable(Exception):
    """No daemon answers at the socket, or the connection was lost."""


class ControlError(Exception):
    """The server answered with an error: its qualified name and its parameters."""

    def __init__(self, name: str, parameters: Mapping[str, Any]) -> None:
        self.name = name
        self.parameters = parameters
        super().__init__(f"{name}: {parameters.get('why', '')}" if parameters.get("why") else name)


class Client:
    """One connection, for use in a `with` statement. `timeout_s` limits connecting and each reply of `call`."""

    def __init__(self, path: Path, *, timeout_s: float = 10.0) -> None:
        """Connect to the socket at `path`. Raises NotReachable."""
        self._timeout_s = timeout_s
        self._buffer = bytearray()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(timeout_s)
        try:
            self._socket.connect(str(path))
        except OSError as error:
            self._socket.close()
            raise NotReachable(f"{path}: {error.strerror or error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._socket.close()

    def call(self, method: str, parameters: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send one call and return its reply. `method` without a dot is of our interface.

        Raises ControlError, NotReachable.
        """
        self._send(method, parameters)
        return self._reply()[0]

    def stream(self, method: str, parameters: Mapping[str, Any] | None = None) -> Iterator[dict[str, Any]]:
        """Call with `more` and yield replies until the last. Raises ControlError, NotReachable.

        The connection's timeout holds for the first reply; there is none for the others.
        """
        self._send(method, parameters, more=True)
        continues = True
        while continues:
            reply, continues = self._reply()
            self._socket.settimeout(None)
            yield reply
        self._socket.settimeout(self._timeout_s)

    def _send(self, method: str, parameters: Mapping[str, Any] | None, **flags: bool) -> None:
        qualified = method if "." in method else f"io.esper.tolaria.{method}"
        call = {"method": qualified, "parameters": dict(parameters or {}), **flags}
        try:
            self._socket.sendall(json.dumps(call).encode() + b"\0")
        except OSError as error:
            raise NotReachable(f"the connection ended: {error.strerror or error}") from error

    def _reply(self) -> tuple[dict[str, Any], bool]:
        reply = json.loads(self._message())
        parameters = reply.get("parameters") or {}
        if reply.get("error"):
            raise ControlError(reply["error"], parameters)
        return parameters, bool(reply.get("continues"))

    def _message(self) -> bytes:
        searched = 0
        while (end := self._buffer.find(b"\0", searched)) < 0:
            searched = len(self._buffer)
            if searched > _REPLY_BYTES_MAX:
                raise NotReachable("the reply is too long; is this the control socket of a run?")
            try:
                chunk = self._socket.recv(_CHUNK_BYTES)
            except TimeoutError as error:
                raise NotReachable(f"no answer within {self._timeout_s:g} s") from error
            except OSError as error:
                raise NotReachable(f"the connection ended: {error.strerror or error}") from error
            if not chunk:
                raise NotReachable("the connection ended without an answer")
            self._buffer += chunk
        message = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return message
