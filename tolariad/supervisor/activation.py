"""A listening socket handed over by whoever started this process (systemd's LISTEN_FDS).

Promises: what is no listening stream socket of ours is refused by name; the variables are gone afterwards, so no child
takes them for its own. It must not know: the protocol spoken on the socket.
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
    """A descriptor was passed that cannot be the control socket."""


class PassedSocket(msgspec.Struct, frozen=True):
    """The control socket as it was passed. `called`: somebody already waits on it, so that is why we were started."""

    socket: socket.socket
    called: bool


def take_passed_socket(environ: MutableMapping[str, str]) -> PassedSocket | None:
    """The descriptor called `control` (or the only one), or None where none was passed to this very process."""
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
        raise ActivationError(f"descriptor {descriptor} was passed as the control socket and is no socket")
    sock = socket.socket(fileno=descriptor)
    listening = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    if sock.family != socket.AF_UNIX or sock.type != socket.SOCK_STREAM or not listening:
        raise ActivationError(
            f"descriptor {descriptor} was passed as the control socket and is no listening Unix stream socket; "
            "use ListenStream= with a path in the .socket unit"
        )
    sock.setblocking(False)
    readable, _, _ = select.select([sock], [], [], 0)
    return PassedSocket(sock, bool(readable))
