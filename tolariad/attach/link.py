"""One end of the link: a SOCK_SEQPACKET socket that carries whole messages, with descriptors beside them.

Promises: a message arrives whole or not at all. `send` is one system call, so any thread may call it, and a signal
handler amid another `send`. A forked child of the process keeps no end of a link.
"""

from __future__ import annotations

import array
import os
import socket
from typing import Final

from journal.fork import abandon_after_fork
from tolariad.attach import words
from tolariad.channel.packets import memory_file, read_memory_file

# A longer message travels in a memory file: a packet must fit into the socket's buffer at any setting of the system.
_PACKET_BYTES_MAX: Final = 48 * 1024
_BUFFER_BYTES: Final = 1 << 20
# Channel, page and arena, and the file of a long message.
_FDS_MAX: Final = 4
_ANCILLARY_BYTES: Final = socket.CMSG_LEN(_FDS_MAX * array.array("i").itemsize)
_WHOLE, _IN_FILE = b"\0", b"\1"


class LinkLost(Exception):
    """The other side is gone, or sends what is no message."""


class Link:
    """Owns its socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)
        abandon_after_fork(self)

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self._socket.fileno()

    def set_blocking(self, blocking: bool) -> None:  # noqa: FBT001 - as of a socket
        """Let `send` and `receive` wait, or raise BlockingIOError instead."""
        self._socket.setblocking(blocking)

    def peer_pid(self) -> int:
        """Return the process that made this pair of sockets."""
        credentials = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        return int.from_bytes(credentials[:4], "little")

    def send(self, word: words.Word, descriptors: tuple[int, ...] = ()) -> None:
        """Send a message. Raises OSError: BlockingIOError if the socket is full, others if nobody reads any more."""
        body = words.encode(word)
        if len(body) < _PACKET_BYTES_MAX:
            socket.send_fds(self._socket, [_WHOLE + body], descriptors)
            return
        file = memory_file(body, "tolaria-word")
        try:
            socket.send_fds(self._socket, [_IN_FILE], (file, *descriptors))
        finally:
            os.close(file)

    def receive(self) -> tuple[words.Word, list[int]]:
        """Return the next message, and the descriptors that came with it. Raises LinkLost, BlockingIOError."""
        descriptors: list[int] = []
        try:
            packet = self._take(descriptors)
            body = packet[1:]
            if packet[:1] == _IN_FILE and descriptors:
                file = descriptors.pop(0)
                try:
                    body = read_memory_file(file)
                finally:
                    os.close(file)
            return words.decode(body), descriptors
        except BlockingIOError:
            raise
        except Exception as error:
            for one in descriptors:
                os.close(one)
            raise LinkLost(str(error)) from error

    def _take(self, descriptors: list[int]) -> bytes:
        while True:
            try:
                # Not socket.recv_fds: it ignores the flag, so that children would inherit the descriptors.
                packet, ancillary, _, _ = self._socket.recvmsg(
                    *(_PACKET_BYTES_MAX + 64, _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC)
                )
                break
            except ConnectionResetError:
                continue  # once, before the last words of a side that has ended with unread ones
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                passed = array.array("i")
                passed.frombytes(data[: len(data) - len(data) % passed.itemsize])
                descriptors += passed
        if not packet:
            raise LinkLost("the other side has ended")
        return packet

    def shut(self) -> None:
        """Send nothing any more: the other side reads what came, and then the end. It may still send."""
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            return  # it is gone already

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    # A child that held an end would keep the other side from noticing that this process has ended.
    abandon_in_child = close
