"""Words to the service manager (sd_notify): one datagram each, and nothing where nobody listens.

Promises: never blocks, never raises once made. It must not know: what the words mean to the run.
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
    """Talks to $NOTIFY_SOCKET; `watchdog_s` is the manager's limit, None where it watches nobody or somebody else."""

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
            _log.warning("the service manager does not listen on NOTIFY_SOCKET=%s: %s", address, error)
            sock.close()
            return
        self._socket = sock

    def send(self, *lines: str) -> None:
        """Send assignments such as `READY=1` as one datagram. A full or dead socket loses it: the next one comes."""
        if self._socket is None:
            return
        try:
            self._socket.send("\n".join(lines).encode("utf-8", "replace"))
        except OSError as error:
            _log.debug("a word to the service manager was lost: %s", error)

    def ready(self) -> None:
        """The run is replayed, the socket answers."""
        self.send("READY=1", f"MAINPID={os.getpid()}")

    def status(self, text: str) -> None:
        """One line for `systemctl status`; a repetition is not sent."""
        if text != self._status:
            self._status = text
            self.send("STATUS=" + text.replace("\n", " "))

    def extend(self, seconds: float) -> None:
        """Ask for this much time from now on, at the start and at the stop."""
        self.send(f"EXTEND_TIMEOUT_USEC={int(seconds * 1e6)}")

    def reloading(self) -> None:
        """The configuration is read again; `ready` ends it."""
        # Without the time the manager would wait for an answer that it cannot tell from an older one.
        self.send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """The daemon is on its way out."""
        self.send("STOPPING=1")

    def watchdog(self) -> None:
        """Still alive."""
        self.send("WATCHDOG=1")


def _watchdog_s(environ: Mapping[str, str]) -> float | None:
    pid = environ.get("WATCHDOG_PID", "")
    limit = environ.get("WATCHDOG_USEC", "")
    if not limit.isdecimal() or int(limit) == 0 or (pid and pid != str(os.getpid())):
        return None
    return int(limit) / 1e6
