"""Messages to the service manager (sd_notify): one datagram each, and none if no manager listens.

Promises: a Notifier never blocks and, once made, never raises.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Mapping
from typing import Final

_log: Final = logging.getLogger(__name__)


class Notifier:
    """Sends to $NOTIFY_SOCKET. `watchdog_s`: the manager's limit, or None if it does not watch this process."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._socket: socket.socket | None = None
        self._status = ""
        self.watchdog_s = _watchdog_s(environ)
        address = environ.get("NOTIFY_SOCKET", "")
        if not address:
            return
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        try:
            sock.connect("\0" + address[1:] if address[0] == "@" else address)
        except OSError as error:
            _log.warning("The service manager does not listen on NOTIFY_SOCKET=%s: %s", address, error)
            sock.close()
            return
        self._socket = sock

    def send(self, *lines: str) -> None:
        """Send assignments such as `READY=1` as one datagram. It is lost if the socket is full; later ones follow."""
        if self._socket is None:
            return
        try:
            self._socket.send("\n".join(lines).encode("utf-8", "replace"))
        except OSError as error:
            _log.debug("A message to the service manager was lost: %s", error)

    def ready(self) -> None:
        """Send READY=1: the journal is replayed and the control socket answers."""
        self.send("READY=1", f"MAINPID={os.getpid()}")

    def status(self, text: str) -> None:
        """Send one line for `systemctl status`, unless it is the same as the last one."""
        if text != self._status:
            self._status = text
            self.send("STATUS=" + text.replace("\n", " "))

    def extend(self, seconds: float) -> None:
        """Extend the manager's time-out of a start or a stop to `seconds` from now."""
        self.send(f"EXTEND_TIMEOUT_USEC={int(seconds * 1e6)}")

    def reloading(self) -> None:
        """Send RELOADING=1. Call `ready` when the reload is done."""
        # The manager needs the time to tell the READY=1 of this reload from an older one.
        self.send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """Send STOPPING=1."""
        self.send("STOPPING=1")

    def watchdog(self) -> None:
        """Send WATCHDOG=1."""
        self.send("WATCHDOG=1")


def _watchdog_s(environ: Mapping[str, str]) -> float | None:
    pid = environ.get("WATCHDOG_PID", "")
    limit = environ.get("WATCHDOG_USEC", "")
    if not limit.isdecimal() or int(limit) == 0 or (pid and pid != str(os.getpid())):
        return None
    return int(limit) / 1e6
