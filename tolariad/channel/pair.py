"""The socket pair: orders one way, reports the other, as whole packets.

A packet is one flag byte and one msgpack message; a message over 64 KiB travels as a memory file beside an empty packet,
and so does an attachment. Sends never block: what does not fit waits in the sender's outbox. Invariants: the running
number of reports has no gap (a gap closes the channel), and an end that has seen end-of-file never sends again.
It must not know: what an order or a report means.
"""

from __future__ import annotations

import errno
import os
import select
import socket
from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec

from tolariad.channel.page import Page
from tolariad.core.vocabulary import Report, TrainerEffect

MESSAGE_BYTES_MAX: Final = 64 * 1024
_BUFFER_BYTES: Final = 1024 * 1024
_FDS_MAX: Final = 2
_INLINE, _BODY_IN_FILE = 0, 1


class ChannelError(Exception):
    """The other side broke the protocol (a gap in the numbers, a truncated packet); the channel is of no use any more."""


class _Numbered(msgspec.Struct, frozen=True, array_like=True):
    """A report under its incarnation and running number."""

    incarnation: int
    number: int
    report: Report


class _Order(msgspec.Struct, frozen=True, array_like=True):
    """An order to the trainer."""

    effect: TrainerEffect


_encode: Final[Callable[[object], bytes]] = msgspec.msgpack.Encoder().encode
_decode_report = msgspec.msgpack.Decoder(_Numbered)
_decode_order = msgspec.msgpack.Decoder(_Order)


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


class _Packets:
    """Whole packets over one non-blocking SOCK_SEQPACKET socket; the raw socket, since transports refuse this kind."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)
        self._socket = sock
        self._outbox: deque[tuple[bytes, list[int]]] = deque()
        self.closed = False

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self.closed = True
        while self._outbox:
            self._drop_descriptors(self._outbox.popleft()[1])
        self._socket.close()

    @property
    def waiting_count(self) -> int:
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
        try:
            packet, descriptors, flags, _ = socket.recv_fds(self._socket, MESSAGE_BYTES_MAX + 64, _FDS_MAX)
        except BlockingIOError:
            return None
        except ConnectionResetError:
            self.closed = True
            return None
        if not packet:
            self.closed = True
            return None
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            raise ChannelError(f"a packet was cut short (flags {flags:#x}); the other side is not of this version")
        files = [read_memory_file(descriptor) for descriptor in descriptors]
        body = files.pop(0) if packet[0] == _BODY_IN_FILE else packet[1:]
        return body, (files[0] if files else None)


class DaemonEnd:
    """The daemon's end. `send` is for the kernel thread only, as is `Reports`, which reads it."""

    def __init__(self, sock: socket.socket, page: Page) -> None:
        self._packets = _Packets(sock)
        self.page = page
        self._orders = 0

    def fileno(self) -> int:
        """For poll()."""
        return self._packets.fileno()

    @property
    def closed(self) -> bool:
        """The trainer has closed its end, or is gone; what it sent before was received."""
        return self._packets.closed

    def send(self, effect: TrainerEffect, attachment: bytes | None = None) -> None:
        """Send an order, with a file beside it; never blocks. The page says that it waits."""
        self._packets.send(_encode(_Order(effect)), attachment)
        self._orders += 1
        self.page.set_orders(self._orders)

    @property
    def waiting_count(self) -> int:
        """Orders that did not fit into the socket yet."""
        return self._packets.waiting_count

    def flush(self) -> None:
        """Send what did not fit before."""
        self._packets.flush()

    def receive(self) -> _Numbered | None:
        """The next report as it was sent; None when there is none now."""
        received = self._packets.receive()
        if received is None:
            return None
        try:
            return _decode_report.decode(received[0])
        except msgspec.DecodeError as error:
            raise ChannelError(f"a report of the trainer cannot be read: {error}") from error

    def close(self) -> None:
        """Close the socket, which the trainer takes as an order to exit, and this mapping of the page."""
        self._packets.close()
        self.page.close()


class Reports:
    """The reports of one incarnation, in the order of their running number.

    `drain` is the only way reports reach the kernel, whatever carries them.
    """

    def __init__(self, end: DaemonEnd, incarnation: int) -> None:
        self.end = end
        self.incarnation = incarnation
        self.last_number = 0
        self.dropped_count = 0

    def drain(self, limit: int) -> list[Report]:
        """At most `limit` reports that have arrived. Raises ChannelError at a gap in the numbers."""
        taken: list[Report] = []
        while len(taken) < limit:
            numbered = self.end.receive()
            if numbered is None:
                break
            if numbered.incarnation != self.incarnation:
                self.dropped_count += 1
                continue
            if numbered.number != self.last_number + 1:
                raise ChannelError(f"report {numbered.number} follows {self.last_number} of the same trainer")
            self.last_number = numbered.number
            taken.append(numbered.report)
        return taken


class TrainerEnd:
    """The trainer's end: one thread, never blocks in a send."""

    def __init__(self, sock: socket.socket, page: Page) -> None:
        self._packets = _Packets(sock)
        self.page = page
        self._number = 0
        self._taken = 0
        self._poll = select.poll()
        self._poll.register(sock.fileno(), select.POLLIN)

    @property
    def closed(self) -> bool:
        """The daemon is gone: exit without another update."""
        return self._packets.closed

    @property
    def last_number(self) -> int:
        """The running number of the last report."""
        return self._number

    @property
    def outbox_count(self) -> int:
        """Reports that did not fit into the socket yet."""
        return self._packets.waiting_count

    @property
    def order_waits(self) -> bool:
        """One memory read: is there an order that was not taken yet?"""
        return self.page.orders > self._taken

    def report(self, report: Report) -> int:
        """Send a report under the next running number, which is returned; what does not fit is sent by `flush`."""
        self._number += 1
        self._packets.send(_encode(_Numbered(self.page.incarnation, self._number, report)))
        return self._number

    def flush(self) -> None:
        """Send what did not fit before."""
        self._packets.flush()

    def order(self) -> tuple[TrainerEffect, bytes | None] | None:
        """The next order and its attachment; None when there is none now."""
        received = self._packets.receive()
        if received is None:
            return None
        self._taken += 1
        return _decode_order.decode(received[0]).effect, received[1]

    def wait(self, timeout_s: float) -> None:
        """Sleep until an order arrives, the daemon is gone, or the time is over."""
        self._packets.flush()
        if not self._packets.closed:
            self._poll.poll(timeout_s * 1000)

    def close(self) -> None:
        """Close the socket; the page stays mapped until the process ends."""
        self._packets.close()


def channel_pair(incarnation: int) -> tuple[DaemonEnd, socket.socket]:
    """A daemon's end with a fresh page, and the socket the trainer inherits (its descriptor and the page's are passed on)."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return DaemonEnd(ours, Page.create(incarnation)), theirs
