"""The two ends of a channel: orders one way, reports the other, as whole packets; step reports by the ring.

Sends never block. Invariants: the running number of reports has no gap (a gap closes the channel), and an end that has
seen end-of-file never sends again. It must not know: what an order or a report means.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Sized
from typing import Final

import msgspec

from tolariad.channel.packets import ChannelError, Packets
from tolariad.channel.page import Page
from tolariad.channel.ring import SLOTS, RingReader, RingWriter
from tolariad.core.vocabulary import Report, TrainerEffect
from tolariad.core.vocabulary.steps import StepReport, StepValues, report_of

# Steps whose events are not durable may fill the ring to here; behind that they go by the socket.
_RING_AHEAD_MAX: Final = SLOTS - 8
# A record whose predecessor is on its way through a full socket waits for a moment; this is no such wait.
_STUCK_NS: Final = 2_000_000_000


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


class DaemonEnd:
    """The daemon's end. `send` is for the kernel thread only, as is `Reports`, which reads it."""

    def __init__(self, sock: socket.socket, page: Page) -> None:
        self._packets = Packets(sock)
        self.page = page
        self._orders = 0
        self._received = self._posted_at_empty = 0

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

    def wake(self) -> None:
        """Wake a trainer that sleeps at its gate; never blocks."""
        self._packets.nudge()

    @property
    def unsent_count(self) -> int:
        """Orders that did not fit into the socket yet."""
        return self._packets.unsent_count

    def flush(self) -> None:
        """Send what did not fit before."""
        self._packets.flush()

    @property
    def report_pending(self) -> bool:
        """A memory read: was a report put into the socket since the last look? Its end, only a look at it tells."""
        return self.page.posted > self.posted_seen

    @property
    def posted_seen(self) -> int:
        """How many reports of the socket are received, or were not there at a look that came after they were posted."""
        return max(self._received, self._posted_at_empty)

    def receive(self) -> _Numbered | None:
        """The next report as it was sent; None when there is none now."""
        posted = self.page.posted
        received = self._packets.receive()
        if received is None:
            self._posted_at_empty = posted
            return None
        self._received += 1
        try:
            return _decode_report.decode(received[0])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ChannelError(f"a report of the trainer cannot be read: {error}") from error

    def close(self) -> None:
        """Close the socket, which the trainer takes as an order to exit, and this mapping of the page."""
        self._packets.close()
        self.page.close()


class Reports:
    """The reports of one incarnation, in the order of their running number.

    `drain` is the only way reports reach the kernel, whatever carries them: a report whose predecessor has not arrived
    waits, and a number that came neither way is a gap.
    """

    def __init__(self, end: DaemonEnd, incarnation: int) -> None:
        self.end = end
        self.incarnation = incarnation
        self.last_number = 0
        self.dropped_count = 0
        self._ring = RingReader(end.page.ring_words, end.page.ring_doubles)
        self._early: _Numbered | None = None
        self._stuck_since_ns = 0

    def drain(self, limit: int, *, check_socket: bool = True) -> list[Report]:
        """At most `limit` reports that have arrived. Raises ChannelError at a gap in the numbers.

        `look`: ask the socket in any case, not only where the page says that a report waits there.
        """
        taken: list[Report] = []
        while len(taken) < limit:
            report: Report | None = self._ring.take(self.last_number + 1)
            if report is None and (check_socket or self._early is not None or self.end.report_pending):
                report = self._take_from_socket()
            if report is None:
                break
            self.last_number += 1
            taken.append(report)
        self._check_stuck(bool(taken))
        return taken

    def _check_stuck(self, moved: bool) -> None:  # noqa: FBT001 - private, one caller
        """A record that is there and can never be taken must not leave the trainer at its gate for ever."""
        if moved or not self._ring.has_record_from(self.last_number + 1):
            self._stuck_since_ns = 0
            return
        now_ns = time.monotonic_ns()
        self._stuck_since_ns = self._stuck_since_ns or now_ns
        if now_ns - self._stuck_since_ns > _STUCK_NS:
            raise ChannelError(f"the report after {self.last_number} is missing or damaged, and later ones are there")

    @property
    def has_next(self) -> bool:
        """Is the next report in the ring, as far as is known whole, or one in the socket? Two memory reads."""
        return self._ring.has_record(self.last_number + 1) or self.end.report_pending

    def poll_ring(self, inputs: Sized, first_s: float, pause_s: float, looks: int) -> None:
        """Sleep `first_s`, then `pause_s` at a time, until there is a report or an input, or after so many looks.

        Spelled out, since it runs ten thousand times a second: nothing but memory reads and the sleep.
        """
        page, seen = self.end.page, self.end.posted_seen
        (words, at), number = self._ring.next_slot, self.last_number + 1
        wanted = -1 if number == self._ring.damaged_number else number
        sleep_s = first_s
        for _ in range(looks):
            if words[at] == wanted or inputs or page.posted > seen:
                return
            time.sleep(sleep_s)
            sleep_s = pause_s

    @property
    def later_record_present(self) -> bool:
        """A report behind the next one is in the ring: the next one is on its way through the socket, or lost."""
        return self._ring.has_record_from(self.last_number + 2)

    def _take_from_socket(self) -> Report | None:
        """The next report if the socket brought it; one that runs ahead of the ring is kept until its turn."""
        if self._early is None:
            self._early = self._receive()
        early = self._early
        if early is None:
            return None
        if early.number == self.last_number + 1:
            self._early = None
            return early.report
        # What is sent by the socket was sent behind every record before it, so those are in the ring by now.
        report = self._ring.take(self.last_number + 1)
        if report is None:
            raise ChannelError(f"report {early.number} follows {self.last_number} of the same trainer")
        return report

    def _receive(self) -> _Numbered | None:
        while (numbered := self.end.receive()) is not None:
            if numbered.incarnation == self.incarnation:
                return numbered
            self.dropped_count += 1
        return None


class TrainerEnd:
    """The trainer's end: one thread, never blocks in a send."""

    def __init__(self, sock: socket.socket, page: Page) -> None:
        self._packets = Packets(sock)
        self.page = page
        self._ring = RingWriter(page.ring_words, page.ring_doubles)
        self._number = self._posted = 0
        # The ring has room for the record of a report up to this number.
        self._room_to = 0
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
    def unsent_count(self) -> int:
        """Reports that did not fit into the socket yet."""
        return self._packets.unsent_count

    @property
    def needs_attention(self) -> bool:
        """Is there anything but to train on: an order that was not taken, a frozen page, a daemon that is gone?"""
        return self._packets.closed or self.page.needs_attention(self._taken)

    @property
    def order_pending(self) -> bool:
        """One memory read: is there an order that was not taken yet?"""
        return self.page.orders > self._taken

    def report(self, report: Report) -> int:
        """Send a report under the next running number, which is returned; what does not fit is sent by `flush`.

        A step goes into the ring, everything else by the socket.
        """
        if isinstance(report, StepReport):
            return self.report_step(msgspec.structs.astuple(report))
        return self._post(report)

    def report_step(self, values: StepValues) -> int:
        """The same for a step, in every step: nothing is made but its record. A sleeping daemon is woken."""
        number = self._number + 1
        if number > self._room_to and not self._has_room(number):
            return self._post(report_of(values))
        self._number = number
        self._ring.write(number, values)
        if self.page.asleep:
            self._packets.nudge()
        return number

    def _post(self, report: Report) -> int:
        self._number += 1
        self._packets.send(_encode(_Numbered(self.page.incarnation, self._number, report)))
        self._posted += 1
        self.page.set_posted(self._posted)
        return self._number

    def _has_room(self, number: int) -> bool:
        """Room that was there once stays, so it is looked for once in a round of the ring."""
        self._room_to = self.page.durable + _RING_AHEAD_MAX
        return number <= self._room_to

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
