"""The trainers' ends in a group of ranks: rank 0 has the recorder's channel, and the others get its orders from rank 0.

All trainers run the same code. Their orders are one list, which rank 0 passes on as it comes. A trainer gets an order
of it only when a point of the group lets it (points.py), so all obey it at the same place. Reports are rank 0's alone.

Promises: an order is passed on before rank 0 obeys it. Orders that only write what rank 0 holds are not in the list.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from tolariad.channel.page import Page
from tolariad.channel.pair import TrainerEnd, decode_order, encode_order
from tolariad.core import messages as m
from tolariad.core.messages.vocabulary import Report, TrainerEffect

# Rank 0 alone writes checkpoints, and would have the memory for snapshots.
_OF_LEADER: Final = (
    m.TakeCheckpoint,
    m.AbortCheckpoints,
    m.UseRing,
    m.TakeSnapshot,
    m.SetMemoryPressure,
)
_ALL_DURABLE: Final = 1 << 62
_VOTES: Final = (m.RollbackPreparedReport, m.RollbackRefusedReport)
_ERRORS: Final = (m.ExceptionReport, m.SetupRefusedReport)


class Wire(Protocol):
    """What rank 0's trainer needs of the links to the others."""

    def relay(self, order: bytes, attachment: bytes | None) -> None:
        """Pass an order on to all other ranks. Never raises."""

    def blamed(self, report: Report) -> Report | None:
        """Return the report of the error that came first: this one, or that of another rank. None: report nothing."""

    def voted(self, report: m.RollbackPreparedReport) -> m.RollbackPreparedReport | m.RollbackRefusedReport:
        """Wait for the votes of all ranks. Return this report if all agree, else the first refusal."""


class Source(Protocol):
    """What the trainer of another rank needs of its link to rank 0."""

    def next_order(self) -> tuple[bytes, bytes | None]:
        """Return the next order of the list, once it has come. Raises if rank 0 is gone."""

    def tell_error(self, report: Report) -> None:
        """Tell rank 0 that this rank ends with an error. Never raises."""

    def vote(self, report: m.RollbackPreparedReport | m.RollbackRefusedReport) -> None:
        """Tell rank 0 whether this rank can go back. Never raises."""

    @property
    def is_over(self) -> bool:
        """Whether rank 0 has said how the run has ended."""


class _Held(NamedTuple):
    order: TrainerEffect
    attachment: bytes | None
    # Its number in the group's list; 0 if it is for rank 0 alone.
    number: int


class LeaderEnd(TrainerEnd):
    """Rank 0's end. `listed`: how many orders the group's list has."""

    def __init__(self, sock: socket.socket, page: Page, wire: Wire) -> None:
        super().__init__(sock, page)
        self._wire = wire
        self._held: deque[_Held] = deque()
        self.listed = self._limit = 0
        self._obey: Callable[[], None] = lambda: None

    def attend(self, obey: Callable[[], None]) -> None:
        """Call `obey` when orders may have come while this rank waits."""
        self._obey = obey

    def allow(self, orders: int) -> None:
        """Hand out orders up to this number of the list."""
        self._limit = orders

    def collect(self) -> None:
        """Take what has come, and pass it on. Nothing is handed out by that."""
        while (received := self._take()) is not None:
            order, number = decode_order(received[0]), 0
            if not isinstance(order, _OF_LEADER):
                self._wire.relay(*received)
                number = self.listed = self.listed + 1
            self._held.append(_Held(order, received[1], number))

    def add(self, order: TrainerEffect) -> None:
        """Put an order into the list that is for the other ranks alone."""
        self._wire.relay(encode_order(order), None)
        self.listed += 1

    @property
    def needs_attention(self) -> bool:
        """Return whether an order is pending, the gate is not open, or the daemon is gone."""
        return bool(self._held) or super().needs_attention

    @property
    def order_pending(self) -> bool:
        """Return whether an order is pending."""
        return bool(self._held) or super().order_pending

    def order(self) -> tuple[TrainerEffect, bytes | None] | None:
        """Return the next order that the present point allows, and its attachment; None if there is none now."""
        if not self._held or self._held[0].number > self._limit:
            return None
        held = self._held.popleft()
        return held.order, held.attachment

    def wait(self, timeout_s: float) -> None:
        """Sleep until an order arrives, the daemon is gone, or `timeout_s` has passed. Let all ranks obey what came."""
        super().wait(timeout_s)
        self.collect()
        self._obey()

    def report(self, report: Report) -> int:
        """Send a report. An error that follows from that of another rank is reported as the other one.

        That a rollback is prepared is reported when all ranks have agreed.
        """
        if isinstance(report, m.RollbackPreparedReport):
            return super().report(self._wire.voted(report))
        if isinstance(report, _ERRORS) and (first := self._wire.blamed(report)) is not report:
            return self.last_number if first is None else super().report(first)
        return super().report(report)


class FollowerEnd(TrainerEnd):
    """The end of any other rank: its orders are those of rank 0, and it reports nothing but how it fails."""

    def __init__(self, source: Source, limit: Callable[[], int], wait: Callable[[float], None]) -> None:
        """`limit`: how many orders may be handed out now. `wait`: wait for a word of rank 0."""
        # A page of its own, on which everything is durable: no wait of this rank is for the recorder.
        page = Page.create(1)
        page.set_durable(_ALL_DURABLE)
        page.thaw()
        ours, self._other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        super().__init__(ours, page)
        self._source, self._limit, self._wait = source, limit, wait
        self._handed = 0

    @property
    def closed(self) -> bool:
        """Whether the run is over: the recorder of a run that halts ends it without an order."""
        return self._source.is_over

    @property
    def needs_attention(self) -> bool:
        """Return whether an order may be taken."""
        return self.order_pending

    @property
    def order_pending(self) -> bool:
        """Return whether an order may be taken."""
        return self._handed < self._limit()

    def order(self) -> tuple[TrainerEffect, bytes | None] | None:
        """Return the next order that the present point allows, and its attachment; None if there is none now."""
        if not self.order_pending:
            return None
        body, attachment = self._source.next_order()
        self._handed += 1
        return decode_order(body), attachment

    def wait(self, timeout_s: float) -> None:
        """Wait for a word of rank 0, at most for `timeout_s`. Raises if rank 0 is gone."""
        self._wait(timeout_s)

    def report(self, report: Report) -> int:
        """Report nothing, but tell rank 0 of an error, and whether a rollback is possible."""
        if isinstance(report, _ERRORS):
            self._source.tell_error(report)
        elif isinstance(report, _VOTES):
            self._source.vote(report)
        return 0

    def report_step(self, values: m.StepValues, metrics: tuple[float, ...] = (), data: int = 0) -> int:  # noqa: ARG002
        """Report nothing."""
        return 0

    def close(self) -> None:
        """Close the sockets."""
        super().close()
        self._other.close()
