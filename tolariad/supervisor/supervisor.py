"""Start trainers when the kernel orders it, one at a time, and end them.

Promises: no trainer is started while another of this run exists. It exists if its lock is held, if it is not reaped, or
if the last one in the journal still runs. If one cannot be removed in time, that is reported, and no second one is
started.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

from tolariad import loop_files
from tolariad.core import messages as m
from tolariad.supervisor.incarnation import Incarnation, Recorder, RunningTrainer
from tolariad.supervisor.lock import FormerTrainer, holder_pid, is_held
from tolariad.supervisor.procfs import wait_channel
from tolariad.supervisor.started import TrainerSetup

_log: Final = logging.getLogger(__name__)


class Supervisor:
    """Belongs to the event loop of the main thread. Call `obey` there."""

    def __init__(
        self,
        setup: TrainerSetup,
        recorder: Recorder,
        former: FormerTrainer | None = None,
        *,
        defect: Callable[[BaseException], None] | None = None,
        begin: Callable[[int, str], RunningTrainer] | None = None,
    ) -> None:
        """`defect` is called if the supervisor itself fails: then nothing would start or watch a trainer.

        `begin` starts the trainer of this number, and gets the mark of the traceback that an earlier one printed; None:
        a process, as `setup` says. Raises OSError.
        """
        self._begin = begin or (lambda number, printed: Incarnation(number, setup, recorder, printed))
        self._setup = setup
        self._defect = defect
        self._recorder = recorder
        self._former = former
        self._living: RunningTrainer | None = None
        self._starting: asyncio.Task[None] | None = None
        self._life: asyncio.Task[None] | None = None
        self._closing = False
        self._printed = ""

    @property
    def living(self) -> RunningTrainer | None:
        """The running trainer, or None. Any thread may read it."""
        return self._living

    @property
    def pid(self) -> int:
        """The running trainer's process id, or 0."""
        return self._living.pid if self._living else 0

    def obey(self, effect: m.SpawnTrainer | m.KillTrainer) -> None:
        """Carry out one effect."""
        if isinstance(effect, m.KillTrainer):
            self._kill(effect)
        elif not self._closing and not (self._living and self._living.number == effect.incarnation):
            self._cancel_start()
            self._starting = self._vital(self._start(effect))

    def _vital(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(coroutine)
        task.add_done_callback(self._check_for_defect)
        return task

    def _check_for_defect(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or (error := task.exception()) is None:
            return
        _log.critical("The supervisor failed. No trainer can be started or watched any more.", exc_info=error)
        if self._defect is not None:
            self._defect(error)

    def _kill(self, effect: m.KillTrainer) -> None:
        if self._living and self._living.number == effect.incarnation:
            self._living.kill(effect.why)

    def _cancel_start(self) -> None:
        if self._starting:
            self._starting.cancel()
            self._starting = None

    async def _start(self, order: m.SpawnTrainer) -> None:
        """Wait for the back-off, wait until no other trainer exists, start one, and watch it in a task of its own."""
        await asyncio.sleep(order.delay_s)
        if not await self._no_other_trainer(order.incarnation):
            return
        try:
            self._living = self._begin(order.incarnation, self._printed)
        except OSError as error:
            _log.error("Trainer %d could not be started: %s", order.incarnation, error)
            why = f"the trainer could not be started: {error}"
            self._recorder.submit(m.TrainerGone(incarnation=order.incarnation, reason=m.DeathReason.EXIT, output=why))
            return
        _log.info("Trainer %d started as pid %d", order.incarnation, self._living.pid)
        self._life = self._vital(self._watch(self._living))

    async def _watch(self, living: RunningTrainer) -> None:
        await living.run()
        self._printed = living.printed
        self._living = None

    async def _no_other_trainer(self, incarnation: int) -> bool:
        """Kill the trainer that an earlier daemon left and wait for its lock. Return False if it is stuck."""
        started = time.monotonic()
        while self._living is not None or await self._is_lock_held():
            # Kill it only if the lock of this run folder is held. In a copy of a run folder the journal names the
            # trainer of the original run, which must live on.
            if self._former and await self._is_lock_held():
                self._former.kill_group()
            waited_s = time.monotonic() - started
            if waited_s >= self._setup.timeouts.kill_s:
                await self._report_stuck(incarnation, waited_s)
                return False
            await asyncio.sleep(self._setup.timeouts.lock_poll_s)
        self._former = None
        return True

    async def _is_lock_held(self) -> bool:
        return await loop_files.in_thread(is_held, self._setup.run_dir)

    async def _report_stuck(self, incarnation: int, waited_s: float) -> None:
        pid = self.pid or (self._former.pid if self._former and self._former.runs else 0)
        pid = pid or await loop_files.in_thread(holder_pid, self._setup.run_dir)
        state = wait_channel(pid)
        _log.error(
            "Process %d (state %s) holds the trainer lock and survives SIGKILL. No trainer is started.", pid, state
        )
        self._recorder.submit(m.TrainerStuck(incarnation=incarnation, pid=pid, state=state, waited_s=waited_s))

    async def close(self) -> None:
        """Kill the running trainer and wait until it is reaped, at most `Timeouts.kill_s`."""
        self._closing = True
        self._cancel_start()
        if self._living:
            self._living.kill("the daemon ends")
        if self._life:
            await asyncio.wait({self._life}, timeout=self._setup.timeouts.kill_s)
