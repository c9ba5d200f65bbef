"""What the daemon tells its service manager, once a second: where the run stands, that it is alive, that a stop advances.

Promises: the watchdog is fed while this loop turns and the kernel's thread either answers or is inside a write; whether
the trainer makes progress plays no part. A write that takes long is said and never punished. It must not know: how to
stop anything (it says when a stop takes too long).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from tolariad.control.status import RunStatus
from tolariad.core.run import Phase
from tolariad.kernel import Kernel
from tolariad.supervisor.notify import Notifier

_log: Final = logging.getLogger(__name__)

_EVERY_S: Final = 1.0
_SLOW_WRITE_S: Final = 10.0
# A trainer that writes the last checkpoint beats with each file; a silence longer than this does not extend the stop.
_BEAT_AGE_S: Final = 10.0
# What the manager is asked for beyond the daemon's own budget, so that the daemon always gives up first.
_MANAGER_EXTRA_S: Final = 15.0


class Attendant:
    """One coroutine beside the run."""

    def __init__(
        self,
        notifier: Notifier,
        kernel: Kernel,
        view: Callable[[], RunStatus],
        overdue: Callable[[], None],
        stop_budget_s: float,
    ) -> None:
        """`overdue` is called once, when a stop has used up its budget."""
        self._notifier = notifier
        self._kernel = kernel
        self._view = view
        self._overdue = overdue
        self._budget_s = stop_budget_s
        self._pinged = False
        self._answered = True
        self._stop_ends = 0.0

    async def run(self) -> None:
        """Until cancelled."""
        limit_s = self._notifier.watchdog_s
        every_s = _EVERY_S if limit_s is None else min(_EVERY_S, limit_s / 3)
        while True:
            self.look()
            await asyncio.sleep(every_s)

    def look(self) -> None:
        """One round. The watchdog comes first: whatever fails in showing the run, the daemon is alive."""
        if self._kernel_turns():
            self._notifier.watchdog()
        try:
            status = self._view()
            self._notifier.status(status_line(status))
        except Exception:  # noqa: BLE001  a fault in showing the run is a fault in showing, no more
            _log.exception("the run's status cannot be shown")
            return
        if status.phase == Phase.STOPPING.value:
            self._watch_stop(status)

    def _kernel_turns(self) -> bool:
        """Has the kernel answered the last ping, or is it inside a write?"""
        turns = self._answered or self._kernel.write_started_ns != 0
        if self._answered or not self._pinged:
            self._answered, self._pinged = False, True
            self._kernel.ping(self._answer)
        return turns

    def _answer(self) -> None:
        self._answered = True

    def _watch_stop(self, status: RunStatus) -> None:
        """The stop has a budget; a checkpoint that advances starts it anew."""
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
    """One line for `systemctl status`."""
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
