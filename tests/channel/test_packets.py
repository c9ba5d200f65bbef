"""Whatever the other side sends, `receive` returns or raises ChannelError; it never waits and leaves nothing open."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path

import msgspec
import pytest

from tests.descriptors import opened
from tolariad.channel import ChannelError, Page, Reports, TrainerEnd, channel_pair
from tolariad.channel.packets import MESSAGE_BYTES_MAX, PASSED_OVER_MAX, REPORT_BYTES_MAX, Packets, memory_file
from tolariad.core import messages as m

REPORT = m.TrainingEndedReport(step=7)
ENCODED = msgspec.msgpack.encode([1, 1, REPORT])
IN_FILE, NUDGE, ATTACHED = b"\x01", b"\x02", b"\x04"
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL


@pytest.fixture
def ends():
    """The daemon's end, and the bare socket of a trainer."""
    ours, theirs = channel_pair(1)
    with theirs:
        yield ours, theirs
    ours.close()


def pipe() -> int:
    reader, writer = os.pipe()
    os.close(writer)
    return reader


def waiting_pipe() -> int:
    """A FIFO whose reader would wait: it has a writer, which never writes."""
    with tempfile.TemporaryDirectory() as folder:
        os.mkfifo(f"{folder}/fifo")
        return os.open(f"{folder}/fifo", os.O_RDWR)


def a_socket() -> int:
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM).detach()


def on_disk() -> int:
    """A file on a disk, which may be a network's: a read could wait for ever."""
    with tempfile.TemporaryFile(dir=Path(__file__).parent) as file:
        file.write(ENCODED)
        file.flush()
        return os.dup(file.fileno())


def too_large() -> int:
    descriptor = os.memfd_create("large")
    os.ftruncate(descriptor, 1 << 62)
    return descriptor


def write_only() -> int:
    memory = memory_file(ENCODED, "message")
    descriptor = os.open(f"/proc/self/fd/{memory}", os.O_WRONLY)
    os.close(memory)
    return descriptor


def path_only() -> int:
    memory = memory_file(ENCODED, "message")
    descriptor = os.open(f"/proc/self/fd/{memory}", os.O_PATH)
    os.close(memory)
    return descriptor


WRONG = {
    "pipe": pipe,
    "pipe that waits": waiting_pipe,
    "folder": lambda: os.open("/", os.O_RDONLY),
    "socket": a_socket,
    "device": lambda: os.open("/dev/zero", os.O_RDONLY),
    "event": lambda: os.eventfd(0),
    "process": lambda: os.pidfd_open(os.getpid()),
    "file on a disk": on_disk,
    "large": too_large,
    "just too large": lambda: memory_file(b"\0" * (REPORT_BYTES_MAX + 1), "message"),
    "write-only": write_only,
    "path": path_only,
    "empty": lambda: memory_file(b"", "message"),
    "no report": lambda: memory_file(b"\xc1", "message"),
}


def sent(theirs: socket.socket, packet: bytes, *descriptors: int) -> None:
    """Send a packet, and keep none of its descriptors."""
    socket.send_fds(theirs, [packet], descriptors) if descriptors else theirs.send(packet)
    for one in set(descriptors):
        os.close(one)


def is_usable(ours, theirs) -> bool:
    """Return whether the next report arrives."""
    theirs.send(b"\0" + ENCODED)
    numbered = ours.receive()
    return numbered is not None and numbered.report == REPORT


@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.parametrize("flag", [IN_FILE, ATTACHED, b"\x05"])
def test_a_descriptor_that_is_no_message_is_an_error_of_the_channel(ends, kind, flag):
    """An attachment's content is nobody's, so a readable one passes. Nothing stays open."""
    ours, theirs = ends
    before = opened()
    descriptor = WRONG[kind]()
    sent(theirs, flag + ENCODED, *([descriptor] * (2 if flag == b"\x05" else 1)))
    if flag == ATTACHED and kind in {"empty", "no report"}:
        assert ours.receive().report == REPORT
    else:
        with pytest.raises(ChannelError, match=r"^(?!.*Errno).+"):
            ours.receive()

    assert not opened() - before
    assert is_usable(ours, theirs)


@pytest.mark.parametrize(
    "packet", [b"", IN_FILE, ATTACHED, b"\x05", b"\x03", b"\x06", b"\x07", b"\xff", b"\0", b"\0\xc1"]
)
@pytest.mark.parametrize("count", [0, 1, 2, 3, 200])
def test_a_packet_of_another_shape_is_an_error_of_the_channel(ends, packet, count):
    """No flag, no descriptor, an unknown flag, no report, more descriptors than a packet may have."""
    ours, theirs = ends
    before = opened()
    sent(theirs, packet, *[os.open("/dev/null", os.O_RDONLY) for _ in range(count)])
    with pytest.raises(ChannelError):
        ours.receive()

    assert not opened() - before
    assert is_usable(ours, theirs)


@pytest.mark.parametrize("flag", [b"\0", NUDGE])
def test_descriptors_that_nobody_asked_for_are_closed(ends, flag):
    """With a report or a wake-up. The report counts all the same."""
    ours, theirs = ends
    before = opened()
    for _ in range(3):
        sent(theirs, flag + ENCODED, pipe(), a_socket())
    sent(theirs, b"\0" + ENCODED)

    assert ours.receive().report == REPORT
    assert not opened() - before


def test_a_packet_that_is_cut_is_an_error_of_the_channel(ends):
    """Longer than any of ours, with a descriptor."""
    ours, theirs = ends
    before = opened()
    sent(theirs, b"\0" * (MESSAGE_BYTES_MAX + 65), pipe())
    with pytest.raises(ChannelError, match="truncated"):
        ours.receive()

    assert not opened() - before
    assert is_usable(ours, theirs)


def test_a_file_that_shrinks_while_it_is_read_is_an_error_of_the_channel(ends, monkeypatch):
    """The sender still holds it."""
    ours, theirs = ends
    before, pread = opened(), os.pread
    descriptor = memory_file(ENCODED, "message")

    def shrinking(read: int, size: int, offset: int) -> bytes:
        os.ftruncate(read, 3)
        return pread(read, size, offset)

    monkeypatch.setattr(os, "pread", shrinking)
    sent(theirs, IN_FILE, descriptor)
    with pytest.raises(ChannelError, match="shrank to 3"):
        ours.receive()
    assert not opened() - before


def test_a_file_that_is_sealed_is_read(ends):
    """Nobody can change it any more: better than ours."""
    ours, theirs = ends
    descriptor = os.memfd_create("message", os.MFD_ALLOW_SEALING)
    os.write(descriptor, ENCODED)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
    sent(theirs, IN_FILE, descriptor)

    assert ours.receive().report == REPORT


def test_no_child_inherits_a_descriptor_that_was_received(ends, monkeypatch):
    """Seen at the moment at which it is read."""
    ours, theirs = ends
    inheritable, pread = [], os.pread

    def noting(read: int, size: int, offset: int) -> bytes:
        inheritable.append(os.get_inheritable(read))
        return pread(read, size, offset)

    monkeypatch.setattr(os, "pread", noting)
    sent(theirs, IN_FILE, memory_file(ENCODED, "message"))
    ours.receive()
    assert inheritable == [False]


@pytest.mark.parametrize("packet", [NUDGE, b"\0" + msgspec.msgpack.encode([9, 1, REPORT])])
def test_a_flood_without_a_report_ends(packet):
    """Of wake-ups, or of reports of another incarnation: the reader is not kept from its work."""

    class Endless:
        def recvmsg(self, *_):
            return packet, [], 0, None

    ours, theirs = channel_pair(1)
    theirs.close()
    ours._packets._socket.close()
    ours._packets._socket = Endless()
    with pytest.raises(ChannelError, match=str(PASSED_OVER_MAX)):
        Reports(ours, 1).drain(10)


def test_an_error_of_the_system_is_an_error_of_the_channel(ends):
    """A socket that cannot be read at all."""
    ours, _ = ends
    os.dup2(os.open("/dev/null", os.O_RDONLY), ours.fileno())
    with pytest.raises(ChannelError, match="cannot be read"):
        ours.receive()


def test_random_packets_leave_nothing_open(ends, seed):
    """Any flag, any bytes, any descriptors."""
    ours, theirs = ends
    draw = random.Random(seed)
    before = opened()
    for _ in range(500):
        packet = draw.randbytes(draw.choice([0, 1, 1, 2, 9, 300]))
        if packet and draw.random() < 0.7:
            packet = bytes([draw.randrange(8)]) + draw.choice([packet[1:], ENCODED])
        kinds = [WRONG[draw.choice(list(WRONG))] for _ in range(draw.choice([0, 0, 1, 1, 2, 3]))]
        sent(theirs, packet, *[kind() for kind in kinds])
        with contextlib.suppress(ChannelError):
            ours.receive()
    assert not opened() - before
    assert is_usable(ours, theirs)


def test_the_last_reports_of_a_trainer_that_ends_with_an_unread_packet_are_received(ends):
    """The system reports ECONNRESET once, before them. It is not the end."""
    ours, theirs = ends
    trainer = TrainerEnd(theirs, Page.attach(os.dup(ours.page.descriptor)))
    ours.wake()
    last = [m.ExceptionReport(step=3, traceback="why it died"), REPORT]
    for report in last:
        trainer.report(report)
    trainer.close()

    assert Reports(ours, 1).drain(10) == last
    assert ours.closed


def test_a_send_to_a_trainer_that_is_gone_loses_none_of_its_reports(ends):
    """The send finds it gone first."""
    ours, theirs = ends
    trainer = TrainerEnd(theirs, Page.attach(os.dup(ours.page.descriptor)))
    ours.wake()
    trainer.report(REPORT)
    trainer.close()
    for _ in range(3):
        ours.wake()

    assert ours.closed
    assert Reports(ours, 1).drain(10) == [REPORT]


def test_a_message_and_its_attachment_arrive_whole():
    """Each small, and each in a file."""
    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    one, other = Packets(a), Packets(b)
    large = random.Random(1).randbytes(MESSAGE_BYTES_MAX)
    given = [(b"x", None), (b"x", b"file"), (large, None), (large, b""), (b"", large)]
    for body, attachment in given:
        one.send(body, attachment)

    assert [other.receive() for _ in given] == given
    assert other.receive() is None
    one.close()
    other.close()


def test_the_trainer_cannot_cut_the_page():
    """The recorder would be killed by SIGBUS."""
    page = Page.create(1)
    for size in (0, 1 << 30):
        with pytest.raises(PermissionError):
            os.ftruncate(page.descriptor, size)
    page.close()
