"""A synchronous client of the control socket. It uses plain sockets and JSON, and loads quickly.

Promises: the client checks owner and process of the socket before it sends anything. It gives no order before it knows
that the run that answers is the one that was meant. A call returns the reply's parameters or raises, whatever the
server sends. A reply has the type of its method, holds only what our server can send, and comes in time. A stream
yields replies until the last one. Replies are never mixed up.
"""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import msgspec

from tolariad.control.replies import RunStatus
from tolariad.control.trust import NotReachable as NotReachable  # noqa: PLC0414 - for commands
from tolariad.control.trust import NotTrusted, check_peer, check_socket, servers_of

_CHUNK_BYTES: Final = 1 << 16
_REPLY_BYTES_MAX: Final = 1 << 26
_DEPTH_MAX: Final = 32
_CHARACTERS_MAX: Final = 1 << 20
_ERROR_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9.]{0,200}")
T = TypeVar("T")


class BadReply(Exception):
    """The server's answer is no reply of this interface."""


class ControlError(Exception):
    """The server answered with an error: its qualified name and its parameters."""

    def __init__(self, name: str, parameters: Mapping[str, Any]) -> None:
        self.name = name
        self.parameters = parameters
        super().__init__(f"{name}: {parameters.get('why', '')}" if parameters.get("why") else name)


class _Reply(msgspec.Struct, frozen=True):
    parameters: dict[str, Any] | None = None
    continues: bool | None = None
    error: str | None = None


_decode: Final = msgspec.json.Decoder(_Reply).decode


def read_reply(reply: Mapping[str, Any], kind: type[T]) -> T:
    """Return the parameters of a reply as `kind`. Raises BadReply."""
    try:
        return msgspec.convert(reply, kind)
    except msgspec.ValidationError as error:
        raise BadReply(f"what answers is no run of this version: {error}") from error


class Client:
    """One connection, for use in a `with` statement. `timeout_s` limits connecting and each reply of `call`."""

    def __init__(self, path: Path, *, folder: Path | None = None, timeout_s: float = 10.0) -> None:
        """Connect to the socket at `path`, which must be that of the run in `folder`; None: of any run.

        Raises NotReachable, and NotTrusted if somebody else may answer there. With a `folder` also as `call`.
        """
        self._path = path
        self._timeout_s = timeout_s
        self._buffer = bytearray()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._connect(folder)
        except OSError as error:
            self._socket.close()
            raise NotReachable(f"{path}: {error.strerror or error}") from error
        except BaseException:
            self._socket.close()
            raise

    def _connect(self, folder: Path | None) -> None:
        servers = servers_of(self._path.parent if folder is None else folder)
        check_socket(self._path, servers)
        self._socket.settimeout(self._timeout_s)
        self._socket.connect(str(self._path))
        check_peer(self._socket, self._path, servers)
        if folder is not None:
            self._require_run(folder)

    def _require_run(self, folder: Path) -> None:
        """Check that the run that answers is the one in `folder`: the link in a copied folder leads to the original."""
        status, found = read_reply(self.call("Status").get("status") or {}, RunStatus), folder.stat()
        # The inode, not the path: in a container the same folder has another one.
        if status.dir_inode != f"{found.st_dev}:{found.st_ino}":
            raise NotTrusted(
                f"{self._path} is the socket of the run in {status.dir}, not of that in {folder}, which is perhaps a "
                f"copy of it; nothing was ordered"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._socket.close()

    def call(self, method: str, parameters: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send one call and return its reply. `method` without a dot is of our interface.

        Raises ControlError, NotReachable, BadReply.
        """
        self._send(method, parameters)
        return self._reply(time.monotonic() + self._timeout_s)[0]

    def stream(self, method: str, parameters: Mapping[str, Any] | None = None) -> Iterator[dict[str, Any]]:
        """Call with `more` and yield replies until the last. Raises ControlError, NotReachable, BadReply.

        The connection's timeout holds for the first reply. Any other one may begin late, but must then come as quickly.
        """
        self._send(method, parameters, more=True)
        deadline: float | None = time.monotonic() + self._timeout_s
        continues = True
        while continues:
            reply, continues = self._reply(deadline)
            deadline = None
            yield reply

    def _send(self, method: str, parameters: Mapping[str, Any] | None, **flags: bool) -> None:
        qualified = method if "." in method else f"io.esper.tolaria.{method}"
        call = {"method": qualified, "parameters": dict(parameters or {}), **flags}
        try:
            self._socket.settimeout(self._timeout_s)
            self._socket.sendall(json.dumps(call).encode() + b"\0")
        except OSError as error:
            raise NotReachable(f"the connection ended: {error.strerror or error}") from error

    def _reply(self, deadline: float | None) -> tuple[dict[str, Any], bool]:
        try:
            reply = _decode(self._message(deadline))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadReply(f"what answers at {self._path} is no run: its reply cannot be read ({error})") from error
        parameters = reply.parameters or {}
        if why := _unsendable(parameters, 0):
            raise BadReply(f"what answers at {self._path} is no run: its reply holds {why}")
        if reply.error is None:
            return parameters, bool(reply.continues)
        if not _ERROR_NAME.fullmatch(reply.error):
            raise BadReply(f"what answers at {self._path} is no run: its reply is an error without a name")
        raise ControlError(reply.error, parameters)

    def _message(self, deadline: float | None) -> bytes:
        searched = 0
        while (end := self._buffer.find(b"\0", searched)) < 0:
            searched = len(self._buffer)
            if searched > _REPLY_BYTES_MAX:
                raise BadReply(f"what answers at {self._path} is no run: its reply does not end")
            if searched and deadline is None:
                deadline = time.monotonic() + self._timeout_s
            self._receive(deadline)
        message = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return message

    def _receive(self, deadline: float | None) -> None:
        """Wait for more bytes of a reply, at most until `deadline`. Raises NotReachable."""
        left_s = None if deadline is None else deadline - time.monotonic()
        try:
            if left_s is not None and left_s <= 0:
                raise TimeoutError
            self._socket.settimeout(left_s)
            chunk = self._socket.recv(_CHUNK_BYTES)
        except TimeoutError as error:
            raise NotReachable(f"no answer within {self._timeout_s:g} s") from error
        except OSError as error:
            raise NotReachable(f"the connection ended: {error.strerror or error}") from error
        if not chunk:
            raise NotReachable("the connection ended without an answer")
        self._buffer += chunk


def _unsendable(value: Any, depth: int) -> str:
    """Return what is in a reply that no server of ours sends, as a noun; "" if there is nothing."""
    if isinstance(value, str):
        return "a NUL" if "\0" in value else "a text without end" if len(value) > _CHARACTERS_MAX else ""
    if isinstance(value, int):
        return "" if -(2**63) <= value < 2**64 else "a number that is too large"
    if isinstance(value, dict | list):
        if depth > _DEPTH_MAX:
            return "too many values within each other"
        inner = [*value, *value.values()] if isinstance(value, dict) else value
        return next((why for one in inner if (why := _unsendable(one, depth + 1))), "")
    return ""
