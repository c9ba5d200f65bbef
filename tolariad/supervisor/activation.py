"""Take over a listening socket from the process that started this one (systemd's LISTEN_FDS).

Promises: anything but a listening Unix stream socket is refused with a reason. The variables are removed afterwards, so
no child process uses them.
"""

from __future__ import annotations

import os
import select
import socket
import stat
from collections.abc import MutableMapping
from typing import Final

import msgspec

_FIRST_FD: Final = 3
_VARIABLES: Final = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_PIDFDID")
SOCKET_NAME: Final = "control"


class ActivationError(Exception):
    """A passed descriptor cannot be the control socket."""


class PassedSocket(msgspec.Struct, frozen=True):
    """The control socket as it was passed. `called`: a client is already connecting, which caused this start."""

    socket: socket.socket
    called: bool


def take_passed_socket(environ: MutableMapping[str, str]) -> PassedSocket | None:
    """Return the socket named `control`, or the only one, or None if none was passed to exactly this process."""
    values = {name: environ.pop(name, "") for name in _VARIABLES}
    if values["LISTEN_PID"] != str(os.getpid()) or not values["LISTEN_FDS"].isdecimal():
        return None
    count = int(values["LISTEN_FDS"])
    names = values["LISTEN_FDNAMES"].split(":") if values["LISTEN_FDNAMES"] else []
    if count == 0:
        return None
    if count == 1:
        descriptor = _FIRST_FD
    elif SOCKET_NAME in names:
        descriptor = _FIRST_FD + names.index(SOCKET_NAME)
    else:
        raise ActivationError(
            f"{count} descriptors were passed and none is called {SOCKET_NAME!r}; "
            f"set FileDescriptorName={SOCKET_NAME} in the .socket unit"
        )
    return _checked(descriptor)


def _checked(descriptor: int) -> PassedSocket:
    os.set_inheritable(descriptor, False)
    if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
        raise ActivationError(f"descriptor {descriptor} was passed as the control socket but is not a socket")
    sock = socket.socket(fileno=descriptor)
    listening = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    if sock.family != socket.AF_UNIX or sock.type != socket.SOCK_STREAM or not listening:
        raise ActivationError(
            f"descriptor {descriptor} was passed as the control socket but is not a listening Unix stream socket; "
            "use ListenStream= with a path in the .socket unit"
        )
    sock.setblocking(False)
    readable, _, _ = select.select([sock], [], [], 0)
    return PassedSocket(sock, bool(readable))
