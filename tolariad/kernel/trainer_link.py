"""The kernel's line to the present trainer: its channel, what it is shown, what it is sent.

Invariant: the gate is set before the durable number, so a trainer that waits for that number finds the gate closed where
the turn has closed it (`show`). For the kernel's thread, but for `expect`. It must not know: decisions.
"""

from __future__ import annotations

import logging
from typing import Final

from tolariad.channel import DaemonEnd, Page, Reports
from tolariad.core.run import gate_open, is_halted
from tolariad.core.state import RunState
from tolariad.core.steps import may_wait
from tolariad.core.vocabulary import TrainerEffect
from tolariad.kernel.wakeup import Wakeup

# How old an undurable step may get before the trainer waits for it, where steps may be held back at all.
LAG_NS: Final = 50_000_000

_log: Final = logging.getLogger("tolariad.kernel")


class TrainerLink:
    """At most one trainer is on it; others may have arrived whose start is not recorded yet."""

    def __init__(self, wakeup: Wakeup) -> None:
        self._wakeup = wakeup
        self._arriving: dict[int, DaemonEnd] = {}
        self.end: DaemonEnd | None = None
        self.reports: Reports | None = None

    def expect(self, incarnation: int, end: DaemonEnd) -> None:
        """A trainer was started and will be on the line once that is recorded. Any thread."""
        self._arriving[incarnation] = end

    def connect(self, incarnation: int) -> None:
        """The trainer's start is recorded: from now on its reports are read."""
        self.disconnect()
        self.end = self._arriving.pop(incarnation)
        self.reports = Reports(self.end, incarnation)
        self._wakeup.register(self.end)

    def reject(self, incarnation: int) -> None:
        """Its start can never be recorded, so it must not be: the end of its channel tells it to exit."""
        self._arriving.pop(incarnation).close()

    def disconnect(self) -> None:
        """Close the channel, which tells a trainer that still lives to exit."""
        if self.end is not None:
            self._wakeup.unregister(self.end)
            self.end.close()
        self.end = self.reports = None

    def is_connected_to(self, incarnation: int) -> bool:
        """Whether the trainer on the line is this one."""
        return self.reports is not None and self.reports.incarnation == incarnation

    def show_durable(self, state: RunState, *, only_steps: bool) -> None:
        """Let the trainer see what became durable. Steps alone leave the gate as it is."""
        end, reports = self.end, self.reports
        if end is None or reports is None:
            return
        page = end.page
        if not only_steps:
            _set_gate(page, state)
        page.set_durable(reports.last_number)
        page.set_lag_ns(LAG_NS if may_wait(state) else 0)
        # Behind the stores. Where the trainer marks itself between them and this look, its own sleep of a millisecond ends it.
        if 0 < page.awaited <= reports.last_number and not page.frozen:
            end.wake()

    def send(self, effect: TrainerEffect, attachment: bytes | None) -> None:
        """An order to the trainer, if there is one."""
        if self.end is None:
            _log.info("no trainer is there to obey %s", type(effect).__name__)
            return
        self.end.send(effect, attachment)

    def freeze(self) -> None:
        """Nothing is recorded any more: no update begins, and nobody reads or is woken by what the trainer says."""
        if self.end is not None:
            self._wakeup.unregister(self.end)
            self.end.page.halt()
        self.reports = None


def _set_gate(page: Page, state: RunState) -> None:
    if gate_open(state):
        page.thaw()
    elif is_halted(state):
        page.halt()
    else:
        page.freeze()
