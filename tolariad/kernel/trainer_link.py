"""The kernel's link to the current trainer: its channel, the state shown on its page, the orders sent to it.

Invariant: the gate is set before the durable number (`show_durable`). A trainer that waits for that number and then
sees it also sees the gate as this turn left it. All methods except `expect` belong to the kernel's thread.
"""

from __future__ import annotations

import logging
import threading
from typing import Final

from tolariad.channel import DaemonEnd, Page, Reports
from tolariad.core import queries as q
from tolariad.core.messages.vocabulary import TrainerEffect
from tolariad.core.state.run_state import RunState
from tolariad.kernel.wakeup import Wakeup

# If steps may be held back: how old an undurable step may get before the trainer waits for it.
LAG_NS: Final = 50_000_000

_log: Final = logging.getLogger("tolariad.kernel")


class TrainerLink:
    """At most one trainer is connected. Others may have been spawned whose start is not recorded yet."""

    def __init__(self, wakeup: Wakeup) -> None:
        self._wakeup = wakeup
        # Filled by other threads, emptied by the kernel's: single dict operations, which need no lock.
        self._arriving: dict[int, DaemonEnd] = {}
        self.end: DaemonEnd | None = None
        self.reports: Reports | None = None

    def expect(self, incarnation: int, end: DaemonEnd) -> None:
        """Keep the channel of a spawned trainer until its start is recorded. Any thread may call this."""
        # Keep the end out of the poll object for now. A report that is read before the trainer's start is recorded
        # would precede its own incarnation in the journal.
        self._arriving[incarnation] = end

    def connect(self, incarnation: int) -> None:
        """Read this trainer's reports from now on. Its start is recorded in the same turn, before any of them."""
        # The former trainer's channel, if it is still open: two trainers must never be connected at a time.
        self.disconnect()
        self.end = self._arriving.pop(incarnation)
        self.reports = Reports(self.end, incarnation)
        self.end.page.set_recorder(threading.get_native_id())
        self._wakeup.register(self.end)

    def reject(self, incarnation: int) -> None:
        """Close the channel of a trainer whose start can never be recorded. The trainer exits at end-of-file."""
        self._arriving.pop(incarnation).close()

    def disconnect(self) -> None:
        """Close the channel. A trainer that is still alive exits at end-of-file."""
        # Unregister before closing: the number of a closed descriptor may be given to another file at once.
        if self.end is not None:
            self._wakeup.unregister(self.end)
            self.end.close()
        self.end = self.reports = None

    def is_connected_to(self, incarnation: int) -> bool:
        """Return whether the connected trainer is this one."""
        return self.reports is not None and self.reports.incarnation == incarnation

    def show_durable(self, state: RunState, *, only_steps: bool, write_ns: int = 0) -> None:
        """Show the trainer what became durable. `only_steps`: the turn held step reports only; the gate stays.

        `write_ns` is the duration of the write; 0 if there was none.
        """
        end, reports = self.end, self.reports
        if end is None or reports is None:
            return
        page = end.page
        # Gate first, then the number (the module's invariant). In the other order the trainer could pass its gate for
        # the update whose report has just frozen the run.
        if not only_steps:
            _set_gate(page, state)
        if write_ns:
            page.set_write_ns(write_ns)
        page.set_durable(reports.last_number)
        # With every turn: `may_wait` changes with the setting and, for `sync: auto`, with the speed of recent steps.
        page.set_lag_ns(LAG_NS if q.may_wait(state) else 0)
        # Read `awaited` after the stores. A trainer that starts to wait between the stores and this read is not woken
        # here. Its own sleep of one millisecond ends, and it finds the number.
        if 0 < page.awaited <= reports.last_number and not page.frozen:
            end.wake()

    def send(self, effect: TrainerEffect, attachment: bytes | None) -> None:
        """Send an order to the trainer, or log it if none is connected."""
        if self.end is None:
            # This is no error: a trainer may die after the turn that ordered something. The next trainer starts with
            # an order of its own, which is computed from the durable state.
            _log.info("%s is not sent: no trainer is connected", type(effect).__name__)
            return
        self.end.send(effect, attachment)

    def freeze(self) -> None:
        """Shut the gate for good and stop reading reports: nothing can be recorded any more."""
        if self.end is not None:
            # Unregister, or each report that nobody reads would end the kernel's sleep at once.
            self._wakeup.unregister(self.end)
            # Halt by the page, not by an order: the socket may be full, and the trainer reads the page in every step.
            self.end.page.halt()
        self.reports = None


def _set_gate(page: Page, state: RunState) -> None:
    if q.gate_open(state):
        page.thaw()
    elif state.run.is_halted:
        page.halt()
    else:
        # Closed, but not halted: steps that the journal already holds may be re-run.
        page.freeze()
