"""Gate and fence: wait until the next update may begin, and until the last step is durable.

Promises: no update begins while the page is frozen, before the report of the previous step is durable, or after the
daemon has gone. If the page allows a lag, an update may begin while step reports, and only those, are not durable yet.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from tolariad import failpoints
from tolariad.channel import Activity
from tolariad.core import messages as m
from tolariad.trainer.orders.inbox import IDLE_S, OrderInbox
from tolariad.trainer.orders.reporter import Progress, Reporter

if TYPE_CHECKING:
    from tolariad.channel import Page, TrainerEnd
    from tolariad.core.messages.vocabulary import Report

# The longest sleep at the gate. The daemon's wake-up packet usually ends it; if that is lost, it costs a millisecond.
_GATE_S: Final = 0.001
# Far more steps than can be in flight within the largest lag, so the deque never drops one that is not durable yet.
_IN_FLIGHT_MAX: Final = 4096


class Gate:
    """Knows which reports must be durable before the next update."""

    def __init__(self, end: TrainerEnd, reporter: Reporter, inbox: OrderInbox) -> None:
        self._end = end
        self._page = end.page
        self._reporter = reporter
        self._inbox = inbox
        # The last report that an update waits for, and the last report for which no lag is allowed.
        self._last_gated = self._last_strict = 0
        # Number and time of each reported step that may not be durable yet. Read only if the page allows a lag.
        self._in_flight: deque[tuple[int, int]] = deque(maxlen=_IN_FLIGHT_MAX)

    def report_step(self, values: m.StepValues, metrics: tuple[float, ...] = (), data: int = 0) -> None:
        """Report an applied step, given as its fields. The next update waits for it, unless the page allows a lag."""
        number = self._last_gated = self._end.report_step(values, metrics, data)
        # The time of the report, not of the step's begin: the lag bounds how many seconds of applied updates a crash
        # can lose.
        self._in_flight.append((number, time.monotonic_ns()))

    def report(self, report: Report) -> None:
        """Send a report that must be durable before the next update begins: a skip, a rollback, a change of shape.

        Such a report decides which data the next step uses, or at which step training continues. After a crash, a
        re-run without it would take another path. So it is never allowed to lag.
        """
        self._last_gated = self._last_strict = self._reporter.report(report)

    def wait(self) -> None:
        """Return when the next update may begin."""
        if failpoints.armed:
            failpoints.reached("gate")
        # First what is nearly always so: every further call would find its code gone from the caches.
        if (self._page.allows_update_after(self._last_gated) and not self._end.closed) or self._is_open():
            return
        # Mark the page, then check again: the daemon wakes only a process whose mark it has seen. If a wake-up is lost
        # nevertheless, it costs one millisecond.
        self._page.set_waiting(self._last_gated)
        try:
            while not self._is_open():
                self._inbox.wait(Activity.GATE, _GATE_S)
        finally:
            # Also if an order unwinds the step from inside the wait: with a mark that stays, the daemon would send a
            # wake-up with every turn.
            self._page.set_waiting(0)

    def _is_open(self) -> bool:
        if self._page.allows_update_after(self._last_gated):
            return not self._end.closed
        # Read the freeze flag after the durable number: the daemon closes the gate before it shows that number. So a
        # trainer that sees the report which froze the run also sees the freeze.
        return self._is_within_lag() and not self._page.frozen and not self._end.closed

    def _is_within_lag(self) -> bool:
        """Return whether only step reports are in flight and the oldest is not older than the page allows."""
        durable, in_flight = self._page.durable, self._in_flight
        while in_flight and in_flight[0][0] <= durable:
            in_flight.popleft()
        # Nothing in flight and the number still too low: the missing report is not a step, so it must be waited for.
        if durable < self._last_strict or not in_flight:
            return False
        return time.monotonic_ns() - in_flight[0][1] < self._page.lag_ns

    def fence(self) -> None:
        """Return when the last applied step is durable."""
        # A capture begins after this, so no checkpoint holds a step that the journal lacks. The freeze does not matter
        # here: no update begins.
        while self._page.durable < self._last_gated:
            self._inbox.wait(Activity.GATE, _GATE_S)

    def ask(self, report: m.InstabilityReport) -> None:
        """Report a finding and wait for the answer. Return if the update is to be made; a rollback unwinds instead."""
        self.report(report)
        # Only the answer for this step counts: an older one may still be in the inbox after a rollback.
        while self._inbox.take(m.GoOn, lambda order: order.step == report.step) is None:
            self._inbox.wait(Activity.GATE, IDLE_S)


class Link(NamedTuple):
    """The parts with which a handler receives orders, reports and waits."""

    page: Page
    progress: Progress
    reporter: Reporter
    inbox: OrderInbox
    gate: Gate

    @classmethod
    def over(cls, end: TrainerEnd) -> Link:
        """Make the parts over this end of the channel."""
        progress = Progress()
        reporter = Reporter(end, progress)
        inbox = OrderInbox(end, reporter, progress)
        return cls(end.page, progress, reporter, inbox, Gate(end, reporter, inbox))
