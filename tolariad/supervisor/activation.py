"""Take over a listening socket from the process that started this one (systemd's LISTEN_FDS).

Promises: anything but a listening Unix stream socket with a path is refused with a reason. The variables are removed
afterwards, so no child process uses them. Of the descriptors only the control socket stays open.
"""

from __future__ import annotations

import contextlib
import os
import re
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
    if values["LISTEN_PID"] != str(os.getpid()) or not re.fullmatch(r"[0-9]{1,6}", values["LISTEN_FDS"]):
        return None
    count = int(values["LISTEN_FDS"])
    names = values["LISTEN_FDNAMES"].split(":")[:count] if values["LISTEN_FDNAMES"] else []
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
    _close_others(count, descriptor)
    return _checked(descriptor)


def _close_others(count: int, kept: int) -> None:
    """Close the descriptors that nobody uses: every trainer would inherit them."""
    for descriptor in range(_FIRST_FD, _FIRST_FD + count):
        if descriptor != kept:
            with contextlib.suppress(OSError):
                os.close(descriptor)


def _checked(descriptor: int) -> PassedSocket:
    try:
        os.set_inheritable(descriptor, False)
        is_socket = stat.S_ISSOCK(os.fstat(descriptor).st_mode)
    except OSError as error:
        why = f"descriptor {descriptor} was passed as the control socket but cannot be used: {error.strerror}"
        raise ActivationError(why) from error
    if not is_socket:
        raise ActivationError(f"descriptor {descriptor} was passed as the control socket but is not a socket")
    sock = socket.socket(fileno=descriptor)
    listening = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    is_stream = sock.family == socket.AF_UNIX and sock.type == socket.SOCK_STREAM and listening
    # Every user can connect to a socket in the abstract name space; its name is bytes.
    if not is_stream or not str(sock.getsockname()).startswith("/"):
        raise ActivationError(
            f"descriptor {descriptor} was passed as the control socket but is not a listening Unix stream socket with "
            "a path; use ListenStream= with a path in the .socket unit"
        )
    sock.setblocking(False)
    readable, _, _ = select.select([sock], [], [], 0)
    return PassedSocket(sock, bool(readable))
