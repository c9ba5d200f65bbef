"""Whole packets over one SOCK_SEQPACKET socket, without ever blocking in a send.

A packet is one flag byte and one message; a message over 64 KiB travels as a memory file beside an empty packet, and so
does an attachment. What does not fit waits in the outbox. It must not know: what a message means.
"""

from __future__ import annotations

import errno
import os
import socket
from collections import deque
from typing import Final

MESSAGE_BYTES_MAX: Final = 64 * 1024
_BUFFER_BYTES: Final = 1024 * 1024
_FDS_MAX: Final = 2
_INLINE, _BODY_IN_FILE, _NUDGE = 0, 1, 2


class ChannelError(Exception):
    """The other side broke the protocol (a gap in the numbers, a truncated packet); the channel is of no use any more."""


def memory_file(body: bytes, name: str) -> int:
    """A descriptor of a memory file that holds `body`, read from its start."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
    view = memoryview(body)
    while view:
        view = view[os.write(descriptor, view) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def read_memory_file(descriptor: int) -> bytes:
    """Everything in the file behind `descriptor`, which is closed."""
    with os.fdopen(descriptor, "rb") as file:
        file.seek(0)
        return file.read()


class Packets:
    """Whole packets over one non-blocking SOCK_SEQPACKET socket; the raw socket, since transports refuse this kind."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)
        self._socket = sock
        self._outbox: deque[tuple[bytes, list[int]]] = deque()
        self.closed = False

    def fileno(self) -> int:
        """For poll()."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the socket and drop what was never sent."""
        self.closed = True
        while self._outbox:
            self._drop_descriptors(self._outbox.popleft()[1])
        self._socket.close()

    @property
    def unsent_count(self) -> int:
        """Packets that did not fit into the socket yet."""
        return len(self._outbox)

    def send(self, body: bytes, attachment: bytes | None = None) -> None:
        """Queue one packet and send what fits."""
        descriptors = []
        flag = _INLINE
        if len(body) >= MESSAGE_BYTES_MAX:
            descriptors.append(memory_file(body, "tolaria-message"))
            flag, body = _BODY_IN_FILE, b""
        if attachment is not None:
            descriptors.append(memory_file(attachment, "tolaria-attachment"))
        self._outbox.append((bytes((flag,)) + body, descriptors))
        self.flush()

    def nudge(self) -> None:
        """Wake the other side; a full socket wakes it as well."""
        if not self.closed and not self._outbox:
            self._outbox.append((bytes((_NUDGE,)), []))
            self.flush()

    def flush(self) -> None:
        """Send what waits, as far as it fits. A reader that is gone closes this end."""
        while self._outbox and not self.closed:
            packet, descriptors = self._outbox[0]
            try:
                if descriptors:
                    socket.send_fds(self._socket, [packet], descriptors)
                else:
                    self._socket.send(packet)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno not in (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN):
                    raise
                self.closed = True
                return
            self._outbox.popleft()
            self._drop_descriptors(descriptors)

    @staticmethod
    def _drop_descriptors(descriptors: list[int]) -> None:
        for descriptor in descriptors:
            os.close(descriptor)

    def receive(self) -> tuple[bytes, bytes | None] | None:
        """The next packet's body and attachment; None when there is none now (or ever again: see `closed`)."""
        while True:
            try:
                packet, descriptors, flags, _ = socket.recv_fds(self._socket, MESSAGE_BYTES_MAX + 64, _FDS_MAX)
            except BlockingIOError:
                return None
            except ConnectionResetError:
                packet = b""
            if not packet:
                self.closed = True
                return None
            if packet[0] != _NUDGE:
                break
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            raise ChannelError(f"a packet was cut short (flags {flags:#x}); the other side is not of this version")
        files = [read_memory_file(descriptor) for descriptor in descriptors]
        body = files.pop(0) if packet[0] == _BODY_IN_FILE else packet[1:]
        return body, (files[0] if files else None)
