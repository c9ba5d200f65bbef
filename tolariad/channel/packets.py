"""Whole packets over one SOCK_SEQPACKET socket. A send never blocks.

A packet is one flag byte and one message. A message of 64 KiB or more travels as a memory file beside an empty packet,
and so does every attachment. A packet that does not fit into the socket waits in the outbox.

Promises: whatever the other side sends, `receive` returns or raises ChannelError, never waits, and leaves no descriptor
open.
"""

from __future__ import annotations

import array
import errno
import fcntl
import os
import select
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
_ANCILLARY_BYTES: Final = socket.CMSG_LEN(_FDS_MAX * array.array("i").itemsize)
# The flags, as bits. A nudge has no other bit.
_BODY_IN_FILE, _NUDGE, _ATTACHED = 1, 2, 4
_FLAGS: Final = frozenset({0, _BODY_IN_FILE, _NUDGE, _ATTACHED, _BODY_IN_FILE | _ATTACHED})
# A socket's buffer holds fewer nudges than this. A sender of more never stops, and would keep the reader from its work.
PASSED_OVER_MAX: Final = 4096
# The other process is gone.
_GONE: Final = frozenset({errno.EPIPE, errno.ECONNRESET, errno.ECONNREFUSED, errno.ENOTCONN})
# The system lacks memory, or this user has too many descriptors in flight: the packet can be sent later.
_LATER: Final = frozenset({errno.EAGAIN, errno.ENOBUFS, errno.ENOMEM, errno.ETOOMANYREFS})


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
    """Return the content of the file. Raises ChannelError if it is no memory file, or has more than `bytes_max`."""
    try:
        # Only files in memory have seals. A read of another kind, such as a pipe, could wait for ever.
        fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
        size = os.fstat(descriptor).st_size
        # Ask for the size before reading: the trainer runs the user's code and may send anything.
        if bytes_max is not None and size > bytes_max:
            raise ChannelError(f"a message of {size} bytes came; one has at most {bytes_max}")
        # Read at a position: the descriptor shares its own with the sender's.
        pieces, read = [], 0
        while read < size and (piece := os.pread(descriptor, size - read, read)):
            pieces.append(piece)
            read += len(piece)
    except OSError as error:
        why = f"a message came with a descriptor that is no readable memory file ({error.strerror})"
        raise ChannelError(why) from error
    if read < size:
        raise ChannelError(f"a message of {size} bytes shrank to {read} while it was read")
    return b"".join(pieces)


class Packets:
    """Packets over one non-blocking SOCK_SEQPACKET socket. asyncio transports refuse this kind, so it is used raw."""

    def __init__(self, sock: socket.socket, bytes_max: int | None = None) -> None:
        """`bytes_max`: the limit for a received message; None: any size, for the side that trusts the other."""
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
        flag = 0
        if len(body) >= MESSAGE_BYTES_MAX:
            descriptors.append(memory_file(body, "tolaria-message"))
            flag, body = _BODY_IN_FILE, b""
        if attachment is not None:
            descriptors.append(memory_file(attachment, "tolaria-attachment"))
            flag |= _ATTACHED
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
            except OSError as error:
                if error.errno in _LATER:
                    # The socket is full, for example. The packet stays at the head of the outbox for the next flush.
                    return
                if error.errno not in _GONE:
                    raise  # a defect of ours
                self.closed = True
                return
            # Closed only after the send: the packet carries copies of them.
            self._outbox.popleft()
            self._drop_descriptors(descriptors)

    @staticmethod
    def _drop_descriptors(descriptors: list[int]) -> None:
        for descriptor in descriptors:
            os.close(descriptor)

    def receive(self) -> tuple[bytes, bytes | None] | None:
        """Return the next packet's body and attachment. None: no packet now, or no more at all if `closed` is set.

        Raises ChannelError.
        """
        for _ in range(PASSED_OVER_MAX):
            descriptors: list[int] = []
            try:
                packet = self._take(descriptors)
                if packet is None:
                    return None
                if packet[0] != _NUDGE:
                    return self._read(packet, descriptors)
            finally:
                # Also those that nobody asked for: a long run would exhaust them.
                self._drop_descriptors(descriptors)
        raise ChannelError(f"{PASSED_OVER_MAX} empty packets came without a pause")

    def _take(self, descriptors: list[int]) -> bytes | None:
        """Return the next packet, and add its descriptors to the list, even if this raises ChannelError."""
        while True:
            try:
                # Not socket.recv_fds: it ignores the flag, so that children would inherit the descriptors.
                packet, ancillary, flags, _ = self._socket.recvmsg(
                    *(MESSAGE_BYTES_MAX + 64, _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC)
                )
                break
            except BlockingIOError:
                return None
            except ConnectionResetError:
                # The system reports this once if the peer ended with an unread packet, before the packets that the peer
                # had sent. Its last report is often among them: why it died.
                continue
            except OSError as error:
                raise ChannelError(f"the channel cannot be read: {error.strerror}") from error
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                passed = array.array("i")
                passed.frombytes(data[: len(data) - len(data) % passed.itemsize])
                descriptors += passed
        # SOCK_SEQPACKET drops the rest of a packet that does not fit the buffer. A version of our own never sends one.
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            raise ChannelError(f"a packet was truncated (flags {flags:#x}); daemon and trainer differ in version")
        if packet:
            return packet
        if not self._is_over():
            raise ChannelError("a packet without a flag came")
        self.closed = True
        return None

    def _is_over(self) -> bool:
        """Return whether the other side sends no more. To `recvmsg` a packet of no bytes looks the same."""
        poll = select.poll()
        poll.register(self._socket, select.POLLRDHUP)
        return bool(poll.poll(0))

    def _read(self, packet: bytes, descriptors: list[int]) -> tuple[bytes, bytes | None]:
        """Return body and attachment of a packet. Raises ChannelError."""
        flag = packet[0]
        if flag not in _FLAGS:
            raise ChannelError(f"a packet with the unknown flag {flag} came; daemon and trainer differ in version")
        wanted = bool(flag & _BODY_IN_FILE) + bool(flag & _ATTACHED)
        if len(descriptors) < wanted:
            raise ChannelError(f"a packet came with {len(descriptors)} of its {wanted} files")
        files = [read_memory_file(one, self._bytes_max) for one in descriptors[:wanted]]
        body = files.pop(0) if flag & _BODY_IN_FILE else packet[1:]
        return body, (files[0] if files else None)
