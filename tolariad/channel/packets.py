"""Whole packets over one SOCK_SEQPACKET socket. A send never blocks.

A packet is one flag byte and one message. A message of 64 KiB or more travels as a memory file beside an empty packet,
and so does every attachment. A packet that does not fit into the socket waits in the outbox.
"""

from __future__ import annotations

import errno
import os
import socket
from collections import deque
from typing import Final

# A longer message travels in a memory file, so no message needs a receive buffer of its own size.
MESSAGE_BYTES_MAX: Final = 64 * 1024
# A report is one event later, and a frame of the journal holds a turn's events.
REPORT_BYTES_MAX: Final = 8 << 20
# Room for many orders or reports while the other side is busy. The rest waits in the outbox.
_BUFFER_BYTES: Final = 1024 * 1024
# A packet carries at most two descriptors: the body and the attachment.
_FDS_MAX: Final = 2
_INLINE, _BODY_IN_FILE, _NUDGE = 0, 1, 2


class ChannelError(Exception):
    """The other side broke the protocol (a gap in the numbers, a truncated packet). Close the channel."""


def memory_file(body: bytes, name: str) -> int:
    """Return the descriptor of a new memory file that holds `body`, positioned at its start."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
    view = memoryview(body)
    # One write may store only a part of a large body.
    while view:
        view = view[os.write(descriptor, view) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def read_memory_file(descriptor: int, bytes_max: int | None = None) -> bytes:
    """Return the content of the file and close `descriptor`. Raises ChannelError if it has more than `bytes_max`."""
    with os.fdopen(descriptor, "rb") as file:
        size = os.fstat(descriptor).st_size
        if bytes_max is not None and size > bytes_max:
            # Ask the file for its size before reading: the trainer runs the user's code and may send anything.
            raise ChannelError(f"a message of {size} bytes came; one has at most {bytes_max}")
        # The descriptor shares its position with the sender's: never rely on its value.
        file.seek(0)
        return file.read()


class Packets:
    """Packets over one non-blocking SOCK_SEQPACKET socket. asyncio transports refuse this kind, so it is used raw."""

    def __init__(self, sock: socket.socket, bytes_max: int | None = None) -> None:
        """`bytes_max`: of one received message; None: any size, for the side that trusts the other."""
        sock.setblocking(False)
        self._bytes_max = bytes_max
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)
        self._socket = sock
        self._outbox: deque[tuple[bytes, list[int]]] = deque()
        self.closed = False

    def fileno(self) -> int:
        """Return the socket's descriptor, for poll()."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the socket and drop the packets that were never sent."""
        self.closed = True
        while self._outbox:
            # Descriptors of packets that were never sent are still open in this process.
            self._drop_descriptors(self._outbox.popleft()[1])
        self._socket.close()

    @property
    def unsent_count(self) -> int:
        """Number of packets that did not fit into the socket yet."""
        return len(self._outbox)

    def send(self, body: bytes, attachment: bytes | None = None) -> None:
        """Queue one packet, then send as many as the socket takes."""
        descriptors = []
        flag = _INLINE
        if len(body) >= MESSAGE_BYTES_MAX:
            descriptors.append(memory_file(body, "tolaria-message"))
            flag, body = _BODY_IN_FILE, b""
        if attachment is not None:
            descriptors.append(memory_file(attachment, "tolaria-attachment"))
        # Always through the outbox, never past it: packets must arrive in the order of the calls.
        self._outbox.append((bytes((flag,)) + body, descriptors))
        self.flush()

    def nudge(self) -> None:
        """Wake the other side with an empty packet. If the outbox is not empty, the packets in the socket wake it."""
        # A nudge carries no data, so it never queues up behind packets that will wake the other side anyway.
        if not self.closed and not self._outbox:
            self._outbox.append((bytes((_NUDGE,)), []))
            self.flush()

    def flush(self) -> None:
        """Send queued packets until the socket is full. If the other side is gone, mark this end as closed."""
        while self._outbox and not self.closed:
            packet, descriptors = self._outbox[0]
            try:
                if descriptors:
                    socket.send_fds(self._socket, [packet], descriptors)
                else:
                    self._socket.send(packet)
            except BlockingIOError:
                # The socket is full. The packet stays at the head of the outbox for the next flush.
                return
            except OSError as error:
                # These three mean that the other process is gone. Any other error is a defect of ours.
                if error.errno not in (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN):
                    raise
                self.closed = True
                return
            # Closed only after the send: the packet carries copies of them.
            self._outbox.popleft()
            self._drop_descriptors(descriptors)

    def _read_files(self, descriptors: list[int]) -> list[bytes]:
        files = []
        try:
            while descriptors:
                files.append(read_memory_file(descriptors.pop(0), self._bytes_max))
        finally:
            self._drop_descriptors(descriptors)
        return files

    @staticmethod
    def _drop_descriptors(descriptors: list[int]) -> None:
        for descriptor in descriptors:
            os.close(descriptor)

    def receive(self) -> tuple[bytes, bytes | None] | None:
        """Return the next packet's body and attachment. None: no packet now, or no more at all if `closed` is set."""
        while True:
            try:
                packet, descriptors, flags, _ = socket.recv_fds(self._socket, MESSAGE_BYTES_MAX + 64, _FDS_MAX)
            except BlockingIOError:
                return None
            except ConnectionResetError:
                # A peer that was killed with unread packets resets the socket: treat it as end-of-file.
                packet = b""
            if not packet:
                self.closed = True
                return None
            if packet[0] != _NUDGE:
                break
        # SOCK_SEQPACKET drops the rest of a packet that does not fit the buffer. A version of our own never sends one.
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            raise ChannelError(f"a packet was truncated (flags {flags:#x}); daemon and trainer differ in version")
        # Read the files even if the body is inline: a descriptor that arrived must be closed, or a long run exhausts
        # them.
        files = self._read_files(descriptors)
        body = files.pop(0) if packet[0] == _BODY_IN_FILE else packet[1:]
        return body, (files[0] if files else None)
