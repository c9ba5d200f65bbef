"""The two ends of a channel: orders one way, reports the other. Steps use the ring, everything else the socket.

Sends never block. Invariants: the numbers of reports have no gap (a gap closes the channel); an end that has seen
end-of-file never sends again.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Sized
from typing import Final

import msgspec

from tolariad.channel.packets import PASSED_OVER_MAX, REPORT_BYTES_MAX, ChannelError, Packets
from tolariad.channel.page import Page
from tolariad.channel.ring import SLOTS, RingReader, RingWriter
from tolariad.core import messages as m
from tolariad.core.calc.bounds import refusal
from tolariad.core.messages.vocabulary import Report, TrainerEffect

# How many undurable steps may lie in the ring. The next ones go by the socket, so no undurable record is overwritten.
_RING_AHEAD_MAX: Final = SLOTS - 8
# How long a report may be missing while a later one is in the ring. A full socket delays one for much less.
_STUCK_NS: Final = 2_000_000_000
# How many bytes one `drain` takes from the socket, apart from its last report: they must fit into one frame.
DRAIN_BYTES: Final = 4 << 20


class _Numbered(msgspec.Struct, frozen=True, array_like=True):
    """A report with its incarnation and its number."""

    incarnation: int
    number: int
    report: Report


class _Order(msgspec.Struct, frozen=True, array_like=True):
    """An order to the trainer."""

    effect: TrainerEffect


_encode: Final[Callable[[object], bytes]] = msgspec.msgpack.Encoder().encode
_decode_report = msgspec.msgpack.Decoder(_Numbered)
_decode_order = msgspec.msgpack.Decoder(_Order)


def encode_order(effect: TrainerEffect) -> bytes:
    """Return an order as it travels."""
    return _encode(_Order(effect))


def decode_order(body: bytes) -> TrainerEffect:
    """Return the order that travels as `body`."""
    return _decode_order.decode(body).effect


class _End:
    """The parts of both ends: packets over a socket, and the page."""

    def __init__(self, packets: Packets, page: Page) -> None:
        self._packets = packets
        self.page = page

    @property
    def closed(self) -> bool:
        """The other side is gone, and everything it sent has been received. A trainer then makes no further update."""
        return self._packets.closed

    @property
    def unsent_count(self) -> int:
        """Number of messages that did not fit into the socket yet."""
        return self._packets.unsent_count

    def flush(self) -> None:
        """Send the messages that did not fit before."""
        self._packets.flush()


class DaemonEnd(_End):
    """The daemon's end. Only the kernel's thread calls `send` and reads reports (`Reports`)."""

    def __init__(self, sock: socket.socket, page: Page) -> None:
        super().__init__(Packets(sock, REPORT_BYTES_MAX), page)
        self.received_bytes = 0
        self._orders = 0
        # `_posted_at_empty`: the trainer's count of posted reports when the socket was last found empty.
        self._received = self._posted_at_empty = 0

    def fileno(self) -> int:
        """Return the socket's descriptor, for poll()."""
        return self._packets.fileno()

    def send(self, effect: TrainerEffect, attachment: bytes | None = None) -> None:
        """Send an order, with an optional attachment; never blocks."""
        self._packets.send(_encode(_Order(effect)), attachment)
        # After the send: a trainer that sees the count finds the order in its socket.
        self._orders += 1
        self.page.set_orders(self._orders)

    def wake(self) -> None:
        """Wake a trainer that sleeps at its gate. Never blocks."""
        self._packets.nudge()

    @property
    def report_pending(self) -> bool:
        """Return whether a report was posted that is not received yet: one memory read. It cannot show end-of-file."""
        return self.page.posted > self.posted_seen

    @property
    def posted_seen(self) -> int:
        """How many posted reports need no further look at the socket."""
        # A report that counts as posted may still be in the trainer's outbox, because its socket is full. If the socket
        # was read after the count and was empty, the packet wakes poll() when it arrives; polling for it would spin.
        return max(self._received, self._posted_at_empty)

    def receive(self) -> _Numbered | None:
        """Return the next report with its numbers, or None if there is none now."""
        # Read the count before the socket: a report posted between the two must not be taken for seen.
        posted = self.page.posted
        received = self._packets.receive()
        if received is None:
            self._posted_at_empty = posted
            return None
        self._received += 1
        self.received_bytes += len(received[0])
        try:
            numbered = _decode_report.decode(received[0])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            # Refuse here, before the kernel sees the report: it may record only values that an event can hold.
            raise ChannelError(f"a report of the trainer cannot be decoded: {error}") from error
        if (why := refusal(numbered.report)) is not None:
            raise ChannelError(f"{type(numbered.report).__name__} of the trainer cannot be recorded: {why}")
        return numbered

    def close(self) -> None:
        """Close the socket and unmap the page. The trainer exits when it sees end-of-file."""
        self._packets.close()
        self.page.close()


class Reports:
    """The reports of one incarnation, in the order of their numbers.

    `drain` merges ring and socket. A report waits until its predecessor has arrived. A number that neither
    can still bring is a gap.
    """

    def __init__(self, end: DaemonEnd, incarnation: int) -> None:
        self.end = end
        self.incarnation = incarnation
        self.last_number = 0
        self.dropped_count = 0
        # There may be reports that the last `drain` did not return.
        self.is_cut = False
        self._ring = RingReader(end.page.ring_words, end.page.ring_doubles)
        self._early: _Numbered | None = None
        self._stuck_since_ns = 0

    def drain(self, limit: int, *, check_socket: bool = True) -> list[Report]:
        """Return up to `limit` reports that have arrived. Raises ChannelError at a gap in the numbers.

        `check_socket`: read the socket even if the page announces no report there.
        """
        taken: list[Report] = []
        bytes_before, self.is_cut = self.end.received_bytes, True
        while len(taken) < limit and self.end.received_bytes - bytes_before < DRAIN_BYTES:
            # The ring first: nearly every report is a step, and a look at the ring costs no system call.
            report: Report | None = self._ring.take(self.last_number + 1)
            if report is None and (check_socket or self._early is not None or self.end.report_pending):
                report = self._take_from_socket()
            if report is None:
                self.is_cut = False
                break
            # A number counts as taken only together with its report: the page shows it as durable after the turn's
            # commit.
            self.last_number += 1
            taken.append(report)
        self._check_stuck(bool(taken))
        return taken

    def _check_stuck(self, moved: bool) -> None:  # noqa: FBT001 - private, one caller
        """Raise ChannelError if the next report has been missing for `_STUCK_NS` while later ones are there."""
        # Without this limit a record that is damaged would leave the trainer at its gate for ever.
        if moved or not self._ring.has_record_from(self.last_number + 1):
            self._stuck_since_ns = 0
            return
        now_ns = time.monotonic_ns()
        self._stuck_since_ns = self._stuck_since_ns or now_ns
        if now_ns - self._stuck_since_ns > _STUCK_NS:
            raise ChannelError(f"the report after {self.last_number} is missing or damaged, and later ones are there")

    @property
    def has_next(self) -> bool:
        """Return whether a report can probably be taken: two memory reads, no system call."""
        return self._ring.has_record(self.last_number + 1) or self.end.report_pending

    def poll_ring(self, inputs: Sized, first_s: float, pause_s: float, looks: int) -> None:
        """Sleep `first_s`, then `pause_s` at a time. Return at a report or an input, or after `looks` sleeps."""
        # The conditions of `has_next`, inlined: this loop runs up to ten thousand times a second beside the trainer.
        page, seen = self.end.page, self.end.posted_seen
        (words, at), number = self._ring.next_slot, self.last_number + 1
        # A record that was found damaged does not end the sleep (see `RingReader.damaged_number`).
        wanted = -1 if number == self._ring.damaged_number else number
        sleep_s = first_s
        for _ in range(looks):
            if words[at] == wanted or inputs or page.posted > seen:
                return
            time.sleep(sleep_s)
            sleep_s = pause_s

    @property
    def later_record_present(self) -> bool:
        """Return whether the ring holds a report after the next one. Then the next one is in the socket, or lost."""
        return self._ring.has_record_from(self.last_number + 2)

    def _take_from_socket(self) -> Report | None:
        """Return the next report if the socket holds it. Keep a report that arrives before its predecessors."""
        if self._early is None:
            self._early = self._receive()
        early = self._early
        if early is None:
            return None
        if early.number == self.last_number + 1:
            self._early = None
            return early.report
        # The trainer writes the record of every earlier step before it sends this packet. So the predecessor is in the
        # ring by now, or it never will be.
        report = self._ring.take(self.last_number + 1)
        if report is None:
            # A gap means that a report is lost, and with it possibly an applied step. So the channel is closed: the
            # next trainer starts from what is recorded.
            raise ChannelError(f"report {early.number} follows {self.last_number} of the same trainer")
        return report

    def _receive(self) -> _Numbered | None:
        for _ in range(PASSED_OVER_MAX):
            numbered = self.end.receive()
            if numbered is None or numbered.incarnation == self.incarnation:
                return numbered
            # Invariant: only this incarnation's reports pass. A dead trainer's child may still hold the socket.
            self.dropped_count += 1
        raise ChannelError(f"{PASSED_OVER_MAX} reports of other incarnations came without a pause")


class TrainerEnd(_End):
    """The trainer's end. One thread uses it. No send blocks."""

    def __init__(self, sock: socket.socket, page: Page) -> None:
        super().__init__(Packets(sock), page)
        self._ring = RingWriter(page.ring_words, page.ring_doubles)
        self._number = self._posted = 0
        # Reports up to this number have room in the ring. It starts at 0, so the first report looks it up.
        self._room_to = 0
        self._taken = 0
        self._poll = select.poll()
        self._poll.register(sock.fileno(), select.POLLIN)

    @property
    def last_number(self) -> int:
        """The number of the last report."""
        return self._number

    @property
    def needs_attention(self) -> bool:
        """Return whether an order is pending, the gate is not open, or the daemon is gone."""
        return self._packets.closed or self.page.needs_attention(self._taken)

    @property
    def order_pending(self) -> bool:
        """Return whether an order is pending: one memory read."""
        return self.page.orders > self._taken

    @property
    def last_durable_step(self) -> tuple[int, m.StepReport] | None:
        """The newest durable step in the ring, after its number; None if there is none. Any thread may ask."""
        return self._ring.newest(self.page.durable)

    def report(self, report: Report) -> int:
        """Send a report under the next number, and return that number.

        A step goes into the ring, every other report by the socket. `flush` sends what did not fit into the socket.
        """
        if isinstance(report, m.StepReport):
            *values, metrics, data = msgspec.structs.astuple(report)
            return self.report_step(tuple(values), metrics, data)
        return self._post(report)

    def report_step(self, values: m.StepValues, metrics: tuple[float, ...] = (), data: int = 0) -> int:
        """Report a step: as `report`, without making an object. Wakes the daemon if it sleeps."""
        number = self._number + 1
        # Without room the step goes by the socket. Overwriting a record that is not durable yet would lose a step.
        if number > self._room_to and not self._has_room(number):
            return self._post(m.report_of(values, metrics, data))
        self._number = number
        # Write, then read `asleep`. The daemon sets `asleep`, then reads the ring. So at least one of the two notices.
        self._ring.write(number, values, metrics, data)
        if self.page.asleep:
            self._packets.nudge()
        return number

    def _post(self, report: Report) -> int:
        self._number += 1
        self._packets.send(_encode(_Numbered(self.page.incarnation, self._number, report)))
        # After the send, so that the count never announces a report whose packet does not exist yet. The packet may
        # still lie in the outbox: see `DaemonEnd.posted_seen`.
        self._posted += 1
        self.page.set_posted(self._posted)
        return self._number

    def _has_room(self, number: int) -> bool:
        """Return whether the ring has room for this number."""
        # The durable number only rises, so one reading is good for the rest of a round of the ring.
        self._room_to = self.page.durable + _RING_AHEAD_MAX
        return number <= self._room_to

    def order(self) -> tuple[TrainerEffect, bytes | None] | None:
        """Return the next order and its attachment, or None if there is none now."""
        received = self._take()
        return None if received is None else (decode_order(received[0]), received[1])

    def _take(self) -> tuple[bytes, bytes | None] | None:
        """Return the next order as it was encoded, and its attachment."""
        received = self._packets.receive()
        if received is None:
            # A nudge, or nothing at all. The count on the page is what says that an order is pending.
            return None
        self._taken += 1
        return received

    def wait(self, timeout_s: float) -> None:
        """Sleep until an order arrives, the daemon is gone, or `timeout_s` has passed."""
        # Flush first: the daemon may be waiting for exactly the report that is still in the outbox.
        self._packets.flush()
        if not self._packets.closed:
            self._poll.poll(timeout_s * 1000)

    def close(self) -> None:
        """Close the socket. The page stays mapped until the process ends."""
        self._packets.close()


def channel_pair(incarnation: int) -> tuple[DaemonEnd, socket.socket]:
    """Return the daemon's end, with a new page, and the socket that the trainer inherits with the page."""
    # SEQPACKET keeps the bounds of messages, so a reader never has to wait for the rest of one.
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return DaemonEnd(ours, Page.create(incarnation)), theirs
