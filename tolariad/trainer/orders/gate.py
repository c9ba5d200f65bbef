"""Gate and fence: when the next update may begin, and when the last step is durable.

Promises: no update begins while the page is frozen, before the report of the previous step is durable, or after the daemon
has gone. Only step reports may be on their way to the disk while an update begins, for as long as the page allows.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Final

from tolariad.channel import Activity
from tolariad.core.checkpoints import words as checkpoints
from tolariad.core.health import detection_words as detection
from tolariad.core.rollback import words as rollback
from tolariad.core.steps import words as steps
from tolariad.failpoints import reached
from tolariad.trainer.orders.inbox import IDLE_S

if TYPE_CHECKING:
    from tolariad.channel import TrainerEnd
    from tolariad.core.steps.words import StepValues
    from tolariad.trainer.orders.inbox import OrderInbox
    from tolariad.trainer.orders.reporter import Reporter

_GATE_S: Final = 0.001
_IN_FLIGHT_MAX: Final = 4096


class Gate:
    """Knows which reports must be durable before the next update."""

    def __init__(self, end: TrainerEnd, reporter: Reporter, inbox: OrderInbox) -> None:
        self._end = end
        self._page = end.page
        self._reporter = reporter
        self._inbox = inbox
        # The last report that an update waits for, and the last of those that no lag is allowed for.
        self._last_gated = self._last_strict = 0
        # Number and time of each reported step that may not be durable yet. Read only if the page allows a lag.
        self._in_flight: deque[tuple[int, int]] = deque(maxlen=_IN_FLIGHT_MAX)

    def report_step(self, values: StepValues) -> None:
        """Report an applied step, given as its fields. The next update waits for it, less the lag that the page allows."""
        number = self._last_gated = self._reporter.report_step(values)
        self._in_flight.append((number, time.monotonic_ns()))

    def report(
        self,
        report: steps.StepSkippedReport
        | checkpoints.RerunReport
        | detection.InstabilityReport
        | rollback.RolledBackReport,
    ) -> None:
        """Send a report that must be durable before the next update begins."""
        self._last_gated = self._last_strict = self._reporter.report(report)

    def wait(self) -> None:
        """Return when the next update may begin.

        Look once, mark the page, look again, then sleep a millisecond at a time: a lost wake-up costs a millisecond.
        """
        reached("gate")
        if self._is_open():
            return
        self._page.set_waiting(self._last_gated)
        try:
            while not self._is_open():
                self._inbox.wait(Activity.GATE, _GATE_S)
        finally:
            self._page.set_waiting(0)

    def _is_open(self) -> bool:
        if self._page.allows_update_after(self._last_gated):
            return not self._end.closed
        # The freeze flag is read after the durable number: the daemon closes the gate before it shows that number.
        return self._is_within_lag() and not self._page.frozen and not self._end.closed

    def _is_within_lag(self) -> bool:
        """Only step reports are in flight, and the oldest of them is not older than the page allows."""
        durable, in_flight = self._page.durable, self._in_flight
        while in_flight and in_flight[0][0] <= durable:
            in_flight.popleft()
        if durable < self._last_strict or not in_flight:
            return False
        return time.monotonic_ns() - in_flight[0][1] < self._page.lag_ns

    def fence(self) -> None:
        """Return when the last applied step is durable."""
        while self._page.durable < self._last_gated:
            self._inbox.wait(Activity.GATE, _GATE_S)

    def ask(self, report: detection.InstabilityReport) -> None:
        """Report a finding. Return when the update is to be made all the same; a rollback unwinds instead."""
        self.report(report)
        while self._inbox.take(detection.GoOn, lambda order: order.step == report.step) is None:
            self._inbox.wait(Activity.GATE, IDLE_S)
