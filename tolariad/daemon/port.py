"""Between the kernel's thread and the loop: pass durable events to listeners, and show the state of the run.

Promises: the kernel's thread never waits here. It wakes the loop only for effects, a failure, a new phase, a
trainer's start or end, or a listener; many turns share one wake-up.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from journal import Journal
from tolariad.channel import Page
from tolariad.control.methods import Change, ReloadRefused
from tolariad.control.pruning import prune_table
from tolariad.control.replies import ReceiverStatus, RunStatus, Server
from tolariad.control.reply_tables import BudgetTable, PruneTable, RateTable, SeedTable
from tolariad.control.status import Heartbeat, LiveFacts, run_status
from tolariad.control.tables import budget_table, rate_table, seed_table
from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.core.calc.text.plain import rfc3339
from tolariad.core.decision import Answer
from tolariad.core.messages.vocabulary import AnyCommand
from tolariad.kernel import Kernel, Published
from tolariad.supervisor.procfs import process_stat
from tolariad.telemetry.histograms import BudgetHistograms

_log: Final = logging.getLogger(__name__)

# How many events may wait for the loop. If there are more, the oldest are dropped; the journal has them.
_WAITING_MAX: Final = 65_536


def now() -> m.Now:
    """Return the current time as inputs carry it."""
    return m.Now(time.time_ns(), time.monotonic_ns())


class Publications:
    """Passes `Published` from the kernel's thread to the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, matters: Callable[[Published], None]) -> None:
        """`matters` is called on the loop for each turn with effects, a failure, a new phase, or a trainer's end."""
        self._loop = loop
        self._matters = matters
        self._listeners: list[Callable[[Change], None]] = []
        self._waiting: deque[tuple[int, m.Event]] = deque(maxlen=_WAITING_MAX)
        self._awake = False
        self._phase: st.Phase | None = None
        self._has_trainer = False

    def publish(self, published: Published) -> None:
        """The kernel's thread calls this after every durable turn."""
        phase, has_trainer = published.state.run.phase, published.state.trainer.alive
        news = phase is not self._phase or has_trainer is not self._has_trainer
        if news or published.effects or published.failure:
            self._phase, self._has_trainer = phase, has_trainer
            self.call(self._matters, published)
        if self._listeners:
            self._waiting.extend(published.events)
            # No lock: `_tell` clears the flag before it reads the queue, so a race costs one wake-up too many.
            if not self._awake:
                self._awake = True
                self.call(self._tell)

    def call(self, function: Callable[..., None], *arguments: object) -> None:
        """Call `function` on the loop; nothing if the loop has ended. Any thread may call this, and never waits."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(function, *arguments)

    def _tell(self) -> None:
        self._awake = False
        events = []
        while self._waiting:
            events.append(self._waiting.popleft())
        if events:
            change = Change(tuple(events))
            for listener in tuple(self._listeners):
                _tell_one(listener, change)

    def subscribe(self, listener: Callable[[Change], None]) -> Callable[[], None]:
        """Call `listener` on the loop with every durable event from now on. The returned function ends that."""
        self._listeners.append(listener)

        def end() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return end

    @property
    def has_listeners(self) -> bool:
        """Whether a listener is subscribed."""
        return bool(self._listeners)


def _tell_one(listener: Callable[[Change], None], change: Change) -> None:
    try:
        listener(change)
    except Exception:  # noqa: BLE001 - other listeners and the run must go on
        _log.exception("A listener failed; the run is not affected")


def process_of(pid: int) -> str:
    """Return what the process of a rank does."""
    stat = process_stat(pid)
    if stat is None or stat.state in "ZX":
        return "gone"
    return "stopped" if stat.state in "Tt" else "running"


class RunPort:
    """A live run as the control server sees it (implements its `ControlPort`)."""

    def __init__(
        self,
        run_dir: Path,
        journal: Journal,
        kernel: Kernel,
        page: Callable[[], Page | None],
        publications: Publications,
        *,
        histograms: BudgetHistograms,
        served_by: Server = "daemon",
        pid: int = 0,
        spare_bytes: Callable[[], int | None] = lambda: None,
        receivers: Callable[[], tuple[ReceiverStatus, ...]] = tuple,
    ) -> None:
        """`page`: the living trainer's. `histograms`: what was measured of the budgets since this was made.

        `pid`: the process that stands for the run; 0: this one. `spare_bytes` returns the memory of a spare that is
        ready, in bytes. `receivers`: those of telemetry.
        """
        self._run_dir = run_dir
        found = run_dir.stat()
        self._inode = f"{found.st_dev}:{found.st_ino}"
        self._journal = journal
        self._kernel = kernel
        self._page = page
        self._publications = publications
        self._histograms = histograms
        self._since = rfc3339(time.time_ns())
        self._served_by, self._pid = served_by, pid or os.getpid()
        self._spare_bytes = spare_bytes
        self._receivers = receivers
        self._reload: Callable[[], Awaitable[tuple[str, ...]]] | None = None
        self.last_use_ns = time.monotonic_ns()

    @property
    def journal_path(self) -> Path:
        """The run's journal folder."""
        return self._journal.folder

    @property
    def durable_seq(self) -> int:
        """The number of the last durable event."""
        self.last_use_ns = time.monotonic_ns()
        return self._kernel.durable.seq

    def status(self) -> RunStatus:
        """The run as of the last durable event."""
        self.last_use_ns = time.monotonic_ns()
        return self.view()

    def rates(self) -> RateTable:
        """The learning rates as of the last durable event."""
        self.last_use_ns = time.monotonic_ns()
        return rate_table(self._kernel.durable)

    def seeds(self) -> SeedTable:
        """Slots and seeds as of the last durable event."""
        self.last_use_ns = time.monotonic_ns()
        return seed_table(self._kernel.durable)

    def pruning(self) -> PruneTable:
        """Phase, cycles and masks as of the last durable event."""
        self.last_use_ns = time.monotonic_ns()
        return prune_table(self._kernel.durable)

    def budgets(self) -> BudgetTable:
        """The budgets as of the last durable event."""
        self.last_use_ns = time.monotonic_ns()
        histograms = self._histograms.by_budget
        return budget_table(self._kernel.durable, histograms, mono_ns=self.last_use_ns, since=self._since)

    def hear_reloads(self, reload: Callable[[], Awaitable[tuple[str, ...]]]) -> None:
        """Reload so from now on."""
        self._reload = reload

    async def reload(self) -> tuple[str, ...]:
        """Read the configuration again. Raises ReloadRefused."""
        if self._served_by == "library":
            raise ReloadRefused("the program that trains gave the configuration: change it there, and start it again")
        if self._reload is None:
            raise ReloadRefused("the run is still starting: repeat it when the run trains")
        return await self._reload()

    def view(self) -> RunStatus:
        """As `status`, for the daemon itself: it does not count as use by a client. Any thread may call this."""
        mono_ns = time.monotonic_ns()
        write_ns = self._kernel.write_started_ns
        facts = LiveFacts(
            pid=self._pid,
            served_by=self._served_by,
            dir_inode=self._inode,
            wall_ns=time.time_ns(),
            mono_ns=mono_ns,
            heartbeat=self._heartbeat(mono_ns),
            segment=self._journal.statistics().segment_no,
            journal_failed=self._kernel.failure,
            write_age_s=(mono_ns - write_ns) / 1e9 if write_ns else 0.0,
            waits_for_space=self._kernel.waits_for_space,
            spare_bytes=self._spare_bytes(),
            process_of=process_of,
            receivers=self._receivers(),
        )
        return run_status(self._kernel.durable, str(self._run_dir), facts)

    def _heartbeat(self, mono_ns: int) -> Heartbeat:
        page = self._page()
        try:
            if page is None or (beat := page.heartbeat).mono_ns == 0:
                return Heartbeat()
            waiting = page.waiting
        except ValueError:  # the trainer has written what is no heartbeat, or has ended meanwhile
            return Heartbeat()
        return Heartbeat(
            step=beat.step,
            age_s=max(0.0, (mono_ns - beat.mono_ns) / 1e9),
            activity=beat.activity.name.lower(),
            waiting=waiting,
        )

    def submit(self, command: AnyCommand, actor: m.Actor, answer: Callable[[Answer], None]) -> None:
        """Pass an order to the kernel. `answer` is called once, on the loop."""
        self.last_use_ns = time.monotonic_ns()
        self._kernel.submit(
            m.CommandReceived(command=command, actor=actor), lambda given: self._publications.call(answer, given)
        )

    def subscribe(self, listener: Callable[[Change], None]) -> Callable[[], None]:
        """Call `listener` on the loop with every durable event from now on. The returned function ends that."""
        self.last_use_ns = time.monotonic_ns()
        return self._publications.subscribe(listener)
