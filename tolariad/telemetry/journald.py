"""Write records to systemd's journal as datagrams with fields. Never waits.

Source: systemd.io/JOURNAL_NATIVE_PROTOCOL. journald reads a field as `KEY=value` and a newline; a value with a newline
in it as `KEY`, a newline, its length (64 bits, little-endian), the value and a newline. A record that does not fit into
a datagram is passed as a sealed file in memory.

Promises: a send neither waits nor raises. What journald has no room for is dropped and counted, and the next record
that it takes says how many.
"""

from __future__ import annotations

import array
import errno
import fcntl
import os
import socket
import struct
import uuid
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Final

SOCKET: Final = "/run/systemd/journal/socket"
_DROPPED: Final = "TOLARIA_DROPPED"
_LENGTH: Final = struct.Struct("<Q")
_TOO_LARGE: Final = (errno.EMSGSIZE, errno.ENOBUFS)
# In a name space of our own, so that nobody else has the same ids.
_NAMES: Final = uuid.uuid5(uuid.NAMESPACE_DNS, "io.esper.tolaria")


def is_journal(descriptor: int, environ: Mapping[str, str]) -> bool:
    """Return whether the service manager has connected this descriptor to its journal.

    It says so by device and inode in JOURNAL_STREAM. A terminal that was started by a service inherits the variable,
    but not the descriptor.
    """
    device, _, inode = environ.get("JOURNAL_STREAM", "").partition(":")
    if not inode:
        return False
    try:
        found = os.fstat(descriptor)
    except OSError:
        return False
    return (device, inode) == (str(found.st_dev), str(found.st_ino))


@cache
def message_id(event: str) -> str:
    """Return the MESSAGE_ID of a type of event: the UUID 5 of its name, which never changes."""
    return uuid.uuid5(_NAMES, event).hex


def datagram(fields: Mapping[str, str]) -> bytes:
    """Return the fields as journald reads them."""
    parts = []
    for key, value in fields.items():
        name, content = key.encode(), value.encode("utf-8", "replace")
        if b"\n" in content:
            parts += [name, b"\n", _LENGTH.pack(len(content)), content, b"\n"]
        else:
            parts += [name, b"=", content, b"\n"]
    return b"".join(parts)


class JournalSender:
    """Sends records to journald. Belongs to any number of threads."""

    def __init__(self, path: str = SOCKET) -> None:
        """Connect. Raises OSError if there is no journald."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        try:
            self._socket.setblocking(False)
            self._socket.connect(path)
        except OSError:
            self._socket.close()
            raise
        self.dropped_count = 0
        self._reported = 0

    def send(self, fields: Mapping[str, str]) -> None:
        """Send a record, or count it if journald does not take it at once."""
        dropped = self.dropped_count - self._reported
        if dropped:
            fields = {**fields, _DROPPED: str(dropped)}
        try:
            self._put(datagram(fields))
        except OSError:
            self.dropped_count += 1
        else:
            self._reported += dropped

    def _put(self, content: bytes) -> None:
        try:
            self._socket.send(content)
        except OSError as error:
            if error.errno not in _TOO_LARGE:
                raise
            self._put_as_file(content)

    def _put_as_file(self, content: bytes) -> None:
        memory = os.memfd_create("tolaria-log", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            view = memoryview(content)
            while view:
                view = view[os.write(memory, view) :]
            seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
            fcntl.fcntl(memory, fcntl.F_ADD_SEALS, seals)
            rights = array.array("i", [memory])
            self._socket.sendmsg([], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        finally:
            os.close(memory)

    def close(self) -> None:
        """Close the socket."""
        with suppress(OSError):
            self._socket.close()
