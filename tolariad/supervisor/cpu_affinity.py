"""Ask the system for cores for daemon and trainer, and for SCHED_FIFO, as core.calc.run.cpu_placement decided.

Promises: a refusal is recorded, never raised. The recorded values are read back from the system. A thread that uses its
core for one second without sleeping loses SCHED_FIFO again.
"""

from __future__ import annotations

import logging
import os
import resource
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, ParamSpec

from tolariad.attach.cores import pin
from tolariad.core import messages as m
from tolariad.core.calc.run.cpu_placement import FIFO_PRIORITY, Demand, Machine, Plan, plan
from tolariad.supervisor.interrupts import disk_core
from tolariad.supervisor.procfs import own_limits, scheduler_name

_log: Final = logging.getLogger(__name__)
P = ParamSpec("P")

# Limit of processor time without a sleep, under SCHED_FIFO. The system sends SIGXCPU when it is exceeded.
_RUN_US_MAX: Final = 1_000_000
_CORES_MAX: Final = 1024


class Scheduling:
    """Scheduling of one daemon. The kernel's thread calls `take` and `give_back`, for itself."""

    def __init__(
        self,
        folder: Path,
        workers: int = 0,
        cores: tuple[int, ...] | None = None,
        chosen_by: str = "",
        *,
        ranks: int = 1,
    ) -> None:
        """`folder`: a folder on the journal's disk. `workers`: number of processes that load the trainer's data.

        `ranks`: processes that train together, each with so many workers; only rank 0 is moved. `cores`: those to
        share; None: those of this process. `chosen_by`: as in Machine.
        """
        if cores is None:
            cores = tuple(sorted(os.sched_getaffinity(0)))
        self._machine = Machine(cores=cores, disk_core=disk_core(folder), chosen_by=chosen_by)
        self._workers, self._ranks = workers * ranks, ranks
        self._thread = 0
        self._trainer = 0
        self._recorder: tuple[int, ...] = ()

    @property
    def cores(self) -> tuple[int, ...]:
        """All cores that the daemon had at its start."""
        return self._machine.cores

    @property
    def recorders_core(self) -> tuple[int, ...]:
        """The core of the recorder alone, if it has one: a process that gives way to it can have the rest."""
        return self._recorder

    def take(self, context: m.ExecutionContextRecorded, trainer_pid: int) -> m.SchedulingRecorded:
        """Ask for what suits this trainer. Return what the system gave. Never raises."""
        environment = context.environment
        on_gpu = environment.device.startswith("cuda")
        chosen = plan(
            self._machine, Demand(threads=environment.threads * self._ranks, workers=self._workers, on_gpu=on_gpu)
        )
        refused: list[str] = []
        polls = False
        if chosen.is_apart:
            polls = self._move_apart(chosen, trainer_pid, refused)
        disk = self._machine.disk_core
        return m.SchedulingRecorded(
            incarnation=context.incarnation,
            threads=environment.threads,
            cores=self._machine.cores,
            disk_core=-1 if disk is None else disk,
            daemon_cores=_cores(0) if polls else (),
            trainer_cores=_cores(trainer_pid) if polls else (),
            scheduler=scheduler_name(0),
            priority=os.sched_getparam(0).sched_priority,
            polls=polls,
            why=chosen.why,
            refused="; ".join(refused),
            limits=own_limits(),
            skippable=True,
        )

    def _move_apart(self, chosen: Plan, trainer_pid: int, refused: list[str]) -> bool:
        """Pin both, then ask for SCHED_FIFO: an unpinned FIFO thread would preempt the trainer."""
        self._thread = threading.get_native_id()
        self._trainer = trainer_pid
        trainer_moved = _tried("the trainer's cores", refused, pin, trainer_pid, chosen.trainer_cores)
        daemon_moved = _tried("the daemon's core", refused, pin, os.getpid(), chosen.daemon_cores)
        if not daemon_moved or not trainer_moved:
            self.give_back()
            return False
        self._recorder = chosen.daemon_cores
        _tried("SCHED_FIFO", refused, _become_fifo)
        return True

    def give_back(self) -> None:
        """Return to all cores and the ordinary class: the trainer is gone, or pinning was refused."""
        if not self._thread:
            return
        _tried("SCHED_OTHER", [], _become_ordinary, self._thread)
        for pid in (os.getpid(), self._trainer):
            _tried("all cores", [], pin, pid, self._machine.cores)
        self._thread = 0
        self._recorder = ()

    def yield_up(self) -> None:
        """Handle SIGXCPU: take SCHED_FIFO from the recorder's thread, which has not slept for a second."""
        thread = self._thread
        if thread and _tried("SCHED_OTHER", [], _become_ordinary, thread):
            _log.error("The recorder's thread ran for a second without sleeping, so it loses SCHED_FIFO.")


def cores_of_the_machine() -> frozenset[int]:
    """Return all cores that a process here may choose from: those of the machine, or of its container."""
    mine = os.sched_getaffinity(0)
    # The system takes those that exist and are allowed, and says which.
    os.sched_setaffinity(0, range(_CORES_MAX))
    try:
        return frozenset(os.sched_getaffinity(0))
    finally:
        os.sched_setaffinity(0, mine)


def _tried(what: str, refused: list[str], ask: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> bool:
    try:
        ask(*args, **kwargs)
    except (OSError, ValueError) as error:
        refused.append(f"{what}: {error}")
        return False
    return True


def _become_fifo() -> None:
    """Make the calling thread SCHED_FIFO. Threads and processes that it starts do not inherit the class."""
    hard = resource.getrlimit(resource.RLIMIT_RTTIME)[1]
    soft = _RUN_US_MAX if hard == resource.RLIM_INFINITY else min(_RUN_US_MAX, hard)
    resource.setrlimit(resource.RLIMIT_RTTIME, (soft, hard))
    os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(FIFO_PRIORITY))


def _become_ordinary(thread: int) -> None:
    os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))


def _cores(pid: int) -> tuple[int, ...]:
    try:
        return tuple(sorted(os.sched_getaffinity(pid)))
    except ProcessLookupError:
        return ()
