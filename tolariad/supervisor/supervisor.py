"""Starts trainers when the kernel says so, one at a time, and ends them.

Promises: no trainer is started while another of this run exists in any form (its lock is held, it is not reaped, the
journal's last one still runs); what stands in the way for too long is told, never started beside. It must not know: why
a trainer is wanted, or how long to wait before one (the kernel says both).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

from tolariad.channel import Heartbeat
from tolariad.core.inputs import TrainerStuck
from tolariad.core.vocabulary.trainer import KillTrainer, SpawnTrainer
from tolariad.supervisor.incarnation import Incarnation, Recorder, TrainerSetup, not_started
from tolariad.supervisor.lock import FormerTrainer, holder_pid, is_held
from tolariad.supervisor.procfs import wait_channel
from tolariad.supervisor.threaded import ThreadIncarnation, TrainerCode

_log: Final = logging.getLogger(__name__)


class Supervisor:
    """Lives on the loop of the main thread; `obey` is called there."""

    def __init__(
        self,
        setup: TrainerSetup,
        recorder: Recorder,
        former: FormerTrainer | None = None,
        *,
        defect: Callable[[BaseException], None] | None = None,
        trainer_code: TrainerCode | None = None,
    ) -> None:
        """`defect` hears of a failure of the supervisor itself: nobody would start or watch a trainer any more.

        `trainer_code`: trainers are threads that run it, not processes.
        """
        self._trainer_code = trainer_code
        self._setup = setup
        self._defect = defect
        self._recorder = recorder
        self._former = former
        self._living: Incarnation | ThreadIncarnation | None = None
        self._starting: asyncio.Task[None] | None = None
        self._life: asyncio.Task[None] | None = None
        self._closing = False

    @property
    def heartbeat(self) -> Heartbeat | None:
        """The living trainer's last sign of life. Any thread may ask."""
        living = self._living
        return living.heartbeat if living else None

    @property
    def waiting(self) -> bool:
        """Whether the living trainer stands at a closed gate. Any thread may ask."""
        living = self._living
        return living.waiting if living else False

    @property
    def pid(self) -> int:
        """The living trainer's process number; 0 where none lives."""
        return self._living.pid if self._living else 0

    def obey(self, effect: SpawnTrainer | KillTrainer) -> None:
        """Carry out one effect."""
        if isinstance(effect, KillTrainer):
            self._kill(effect)
        elif not self._closing and not (self._living and self._living.number == effect.incarnation):
            self._cancel_start()
            self._starting = self._vital(self._start(effect))

    def _vital(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(coroutine)
        task.add_done_callback(self._look_for_defect)
        return task

    def _look_for_defect(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or (error := task.exception()) is None:
            return
        _log.critical("the supervisor failed", exc_info=error)
        if self._defect is not None:
            self._defect(error)

    def _kill(self, effect: KillTrainer) -> None:
        if self._living and self._living.number == effect.incarnation:
            self._living.kill(effect.why)

    def _cancel_start(self) -> None:
        if self._starting:
            self._starting.cancel()
            self._starting = None

    async def _start(self, order: SpawnTrainer) -> None:
        """Wait out the back-off, clear the way, start, and hand over to the trainer's own task."""
        await asyncio.sleep(order.delay_s)
        if not await self._way_is_clear(order.incarnation):
            return
        try:
            self._living = self._begin(order.incarnation)
        except OSError as error:
            _log.error("trainer %d could not be started: %s", order.incarnation, error)
            self._recorder.submit(not_started(order.incarnation, error))
            return
        _log.info("trainer %d started as pid %d", order.incarnation, self._living.pid)
        self._life = self._vital(self._see_through(self._living))

    def _begin(self, number: int) -> Incarnation | ThreadIncarnation:
        if self._trainer_code is not None:
            return ThreadIncarnation(number, self._trainer_code, self._setup.timeouts, self._recorder)
        return Incarnation(number, self._setup, self._recorder)

    async def _see_through(self, living: Incarnation | ThreadIncarnation) -> None:
        await living.run()
        self._living = None

    async def _way_is_clear(self, incarnation: int) -> bool:
        """End what the journal knows to be left over and wait for its lock; told as stuck where that does not help."""
        started = time.monotonic()
        while self._somebody_is_there():
            # Only with this run's lock held is it ours: a copy of a run folder knows the original's trainer by number.
            if self._former and is_held(self._setup.run_dir):
                self._former.kill_group()
            waited_s = time.monotonic() - started
            if waited_s >= self._setup.timeouts.kill_s:
                self._tell_stuck(incarnation, waited_s)
                return False
            await asyncio.sleep(self._setup.timeouts.lock_poll_s)
        self._former = None
        return True

    def _somebody_is_there(self) -> bool:
        return self._living is not None or is_held(self._setup.run_dir)

    def _tell_stuck(self, incarnation: int, waited_s: float) -> None:
        pid = self.pid or (self._former.pid if self._former and self._former.runs else holder_pid(self._setup.run_dir))
        state = wait_channel(pid)
        _log.error("process %d (state %s) holds this run's trainer lock and cannot be ended", pid, state)
        stuck = TrainerStuck(incarnation=incarnation, pid=pid, state=state, waited_s=waited_s)
        self._recorder.submit(stuck)

    async def close(self) -> None:
        """End what lives and wait until it is reaped, within the timeouts for a kill."""
        self._closing = True
        self._cancel_start()
        if self._living:
            self._living.kill("the daemon ends")
        if self._life:
            await asyncio.wait({self._life}, timeout=self._setup.timeouts.kill_s)
