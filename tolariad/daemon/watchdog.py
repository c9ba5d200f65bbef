"""Report to the service manager once a second: the state of the run, a heartbeat, the progress of a stop.

Promises: WATCHDOG=1 is sent while this loop runs and the kernel's thread answers or is inside a write. The trainer's
progress does not matter for it. A slow write is shown in the status; it never stops the watchdog.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from tolariad.control.replies import RunStatus
from tolariad.core import state as st
from tolariad.kernel import Kernel
from tolariad.supervisor.notify import Notifier

_log: Final = logging.getLogger(__name__)

_EVERY_S: Final = 1.0
_SLOW_WRITE_S: Final = 10.0
# A trainer that writes its last checkpoint beats with each file. Only a younger heartbeat than this extends the stop.
_BEAT_AGE_S: Final = 10.0
# Added to the daemon's own budget when asking the manager for time, so that the daemon gives up first.
_MANAGER_EXTRA_S: Final = 15.0


class Watchdog:
    """The task that talks to the service manager."""

    def __init__(
        self,
        notifier: Notifier,
        kernel: Kernel,
        view: Callable[[], RunStatus],
        overdue: Callable[[], None],
        stop_budget_s: float,
    ) -> None:
        """`overdue` is called once, when a stop has exceeded its budget of `stop_budget_s`."""
        self._notifier = notifier
        self._kernel = kernel
        self._view = view
        self._overdue = overdue
        self._budget_s = stop_budget_s
        self._pinged = False
        self._answered = True
        self._stop_ends = 0.0

    async def run(self) -> None:
        """Call `check` at regular intervals until cancelled."""
        limit_s = self._notifier.watchdog_s
        every_s = _EVERY_S if limit_s is None else min(_EVERY_S, limit_s / 3)
        while True:
            self.check()
            await asyncio.sleep(every_s)

    def check(self) -> None:
        """Report once. The watchdog comes first: an error in the status line must not make the daemon look dead."""
        if self._kernel_turns():
            self._notifier.watchdog()
        try:
            status = self._view()
            self._notifier.status(status_line(status))
        except Exception:  # noqa: BLE001 - the status line must not end the run
            _log.exception("The status line could not be made; the run is not affected")
            return
        if status.phase == st.Phase.STOPPING.value:
            self._watch_stop(status)

    def _kernel_turns(self) -> bool:
        """Return whether the kernel has answered the last ping or is inside a write; send the next ping."""
        turns = self._answered or self._kernel.write_started_ns != 0
        if self._answered or not self._pinged:
            self._answered, self._pinged = False, True
            self._kernel.call(self._answer)
        return turns

    def _answer(self) -> None:
        self._answered = True

    def _watch_stop(self, status: RunStatus) -> None:
        """Enforce the budget of a stop. A checkpoint that makes progress restarts the budget."""
        now = time.monotonic()
        if not self._stop_ends:
            self._notifier.stopping()
            self._extend(now)
        elif self._kernel.durable.checkpoints.open and _beats(status):
            self._extend(now)
        elif now >= self._stop_ends:
            self._stop_ends = float("inf")
            self._overdue()

    def _extend(self, now: float) -> None:
        self._stop_ends = now + self._budget_s
        self._notifier.extend(self._budget_s + _MANAGER_EXTRA_S)


def _beats(status: RunStatus) -> bool:
    age_s = status.trainer.heartbeat_age_s if status.trainer else None
    return age_s is not None and age_s < _BEAT_AGE_S


def status_line(status: RunStatus) -> str:
    """Return the line for `systemctl status`."""
    parts = [status.phase]
    if status.step:
        loss = f"{status.loss:.4g}" if status.loss is not None else (status.loss_state or "unknown")
        parts.append(f"epoch {status.epoch}/{status.epochs}, step {status.step}, loss {loss}")
    if status.accuracy is not None:
        parts.append(f"accuracy {status.accuracy:.4f}")
    if status.frozen:
        parts.append(status.frozen)
    if status.conservative is not None:
        parts.append(f"conservative: {status.conservative.why}")
    if status.journal.write_age_s is not None and status.journal.write_age_s > _SLOW_WRITE_S:
        parts.append(f"a journal write has taken {status.journal.write_age_s:.0f} s so far")
    return "; ".join(parts)
