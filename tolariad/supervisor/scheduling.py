"""Asks the system for what core.scheduling decided: cores for daemon and trainer, SCHED_FIFO for the recorder's thread.

Promises: a refusal is told, never raised; what is told is what the system reads back afterwards; a thread that would keep
its core for a second without a pause loses SCHED_FIFO again. It must not know: why a plan is as it is.
"""

from __future__ import annotations

import logging
import os
import resource
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, ParamSpec

from tolariad.core.scheduling import FIFO_PRIORITY, Demand, Machine, Plan, plan
from tolariad.core.vocabulary.trainer import ExecutionContextRecorded, SchedulingRecorded
from tolariad.supervisor.interrupts import disk_core
from tolariad.supervisor.procfs import own_limits, scheduler_name

_log: Final = logging.getLogger(__name__)
P = ParamSpec("P")

# So much processor time without once sleeping ends SCHED_FIFO, by SIGXCPU.
_RUN_US_MAX: Final = 1_000_000
_LOOKS_MAX: Final = 8


class Scheduling:
    """Of one daemon. `take` and `give_back` are called in the thread that is to be scheduled, the kernel's."""

    def __init__(self, folder: Path, workers: int = 0) -> None:
        """`folder` lies on the journal's disk; `workers` are the processes that load the trainer's data."""
        self._machine = Machine(cores=tuple(sorted(os.sched_getaffinity(0))), disk_core=disk_core(folder))
        self._workers = workers
        self._thread = 0
        self._trainer = 0

    def take(self, context: ExecutionContextRecorded, trainer_pid: int) -> SchedulingRecorded:
        """A trainer is ready: ask for what suits it. Never raises."""
        environment = context.environment
        on_gpu = environment.device.startswith("cuda")
        chosen = plan(self._machine, Demand(threads=environment.threads, workers=self._workers, on_gpu=on_gpu))
        refused: list[str] = []
        polls = False
        if chosen.is_apart:
            polls = self._move_apart(chosen, trainer_pid, refused)
        disk = self._machine.disk_core
        return SchedulingRecorded(
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
        """Pin both, then ask for SCHED_FIFO: unpinned, it would preempt the very trainer it serves."""
        self._thread = threading.get_native_id()
        self._trainer = trainer_pid
        trainer_moved = _tried("the trainer's cores", refused, _pin, trainer_pid, chosen.trainer_cores)
        if trainer_pid == os.getpid():
            # A trainer in a thread of ours took this thread along; it alone goes to the core that is free.
            daemon_moved = _tried("the daemon's core", refused, os.sched_setaffinity, 0, chosen.daemon_cores)
        else:
            daemon_moved = _tried("the daemon's core", refused, _pin, os.getpid(), chosen.daemon_cores)
        if not daemon_moved or not trainer_moved:
            self.give_back()
            return False
        _tried("SCHED_FIFO", refused, _become_fifo)
        return True

    def give_back(self) -> None:
        """The trainer is gone, or must not be served like this: any core again, and the ordinary class."""
        if not self._thread:
            return
        _tried("SCHED_OTHER", [], _become_ordinary, self._thread)
        for pid in (os.getpid(), self._trainer):
            _tried("all cores", [], _pin, pid, self._machine.cores)
        self._thread = 0

    def yield_up(self) -> None:
        """SIGXCPU: the recorder's thread does not pause. It stays what it is, but no longer before everybody else."""
        thread = self._thread
        if thread and _tried("SCHED_OTHER", [], _become_ordinary, thread):
            _log.error("the recorder's thread ran for a second without a pause: it is an ordinary one again")


def _tried(what: str, refused: list[str], ask: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> bool:
    try:
        ask(*args, **kwargs)
    except (OSError, ValueError) as error:
        refused.append(f"{what}: {error}")
        return False
    return True


def _become_fifo() -> None:
    """For the calling thread. What it starts, thread or process, begins in the ordinary class."""
    hard = resource.getrlimit(resource.RLIMIT_RTTIME)[1]
    soft = _RUN_US_MAX if hard == resource.RLIM_INFINITY else min(_RUN_US_MAX, hard)
    resource.setrlimit(resource.RLIMIT_RTTIME, (soft, hard))
    os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(FIFO_PRIORITY))


def _become_ordinary(thread: int) -> None:
    os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))


def _pin(pid: int, cores: tuple[int, ...]) -> None:
    """Every thread of a process, looking again until no new one has come. Raises OSError."""
    done: set[int] = set()
    for _ in range(_LOOKS_MAX):
        threads = {int(entry.name) for entry in Path(f"/proc/{pid}/task").iterdir()} - done
        if not threads:
            return
        for thread in threads:
            try:
                os.sched_setaffinity(thread, cores)
            except ProcessLookupError:
                # It ended meanwhile; if it was the last one, the next look says so.
                continue
        done |= threads


def _cores(pid: int) -> tuple[int, ...]:
    try:
        return tuple(sorted(os.sched_getaffinity(pid)))
    except ProcessLookupError:
        return ()
