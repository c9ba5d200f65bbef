"""The start of a loader's worker, before its first batch.

Promises: the user's `worker_init_fn` is called as torch calls it, and `get_worker_info().dataset` is the user's object.
A signal to the trainer's process group reaches the trainer only. A worker ends with the trainer, whatever started it.
Generators that the worker's copy of data set and collate function hold are found after the user's function has run: it
may have made them.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, get_worker_info

from tolariad.trainer.data.carriers import Seeder, be_seeded_by, iterator_seed
from tolariad.trainer.data.held import held_by, with_set_epoch
from tolariad.trainer.data.randomness import seed_host
from tolariad.trainer.data.walk import Place, walk
from tolariad.trainer.errors import SetupRefused


class WorkerPlan(NamedTuple):
    """The plan for the workers of an epoch. `warms`: the index of an item that makes a generator; it is read first.

    `turn`: the worker whose turn the first batch is. torch gives it to its first worker, also after a resume. `base`:
    the seed of worker 0, if torch would draw another one after a resume; None: that which torch draws.
    """

    rng_seed: int
    epoch: int
    source: str
    is_persistent: bool
    user: Callable[[int], None] | None
    collate: Any
    warms: tuple[Any, ...] = ()
    turn: int = 0
    base: int | None = None


class WorkerStart:
    """The `worker_init_fn` of a loader: the user's own, and the state in which the worker begins."""

    def __init__(self, plan: WorkerPlan) -> None:
        self.plan = plan

    def __reduce__(self) -> tuple[Any, ...]:
        return WorkerStart, (self.plan,)

    def __call__(self, worker: int) -> None:
        """Begin the worker with this number."""
        plan = self.plan
        leave_group()
        end_with_the_trainer()
        info: Any = get_worker_info()
        worker = _as_in_turn(info, plan.turn, plan.base)
        if plan.user is not None:
            plan.user(worker)
        for index in plan.warms:
            warm_up(info.dataset, index)
        told = with_set_epoch(info.dataset, plan.collate) if plan.is_persistent else ()
        seeder = Seeder(held_by(info.dataset, plan.collate), worker=worker, epoch=plan.epoch, told=told)
        be_seeded_by(seeder)
        # torch makes the iterator of a stream next.
        seeder.seed(iterator_seed(plan.rng_seed, plan.epoch, worker, plan.source))


def _as_in_turn(info: Any, turn: int, base: int | None) -> int:
    """Be the worker that reads these batches in an epoch without interruption, and return its number.

    torch deals batches out in turn, and begins with its first worker. An item may use the worker's number and seed.
    """
    worker: int = (info.id + turn) % info.num_workers
    # WorkerInfo lets nobody assign. Its seed is that of the loader plus the number.
    object.__setattr__(info, "seed", (info.seed - info.id if base is None else base) + worker)
    object.__setattr__(info, "id", worker)
    seed_host(info.seed)
    return worker


def require_sendable(loader: DataLoader[Any]) -> None:
    """Raise SetupRefused if workers that are spawned could not get the data set: torch says so as a crash."""
    context: Any = loader.multiprocessing_context or torch.multiprocessing
    if not loader.num_workers or (how := context.get_start_method()) == "fork":
        return
    for met in walk([Place("dataset", loader.dataset), Place("collate_fn", loader.collate_fn)]):
        # A worker makes the globals of modules itself, by importing them.
        if isinstance(met.value, torch.Generator) and ":" not in met.path:
            raise SetupRefused(
                f"the task's data: {met.path} is a torch.Generator, which cannot be sent to workers that are started "
                f"by {how}. Make it in worker_init_fn, hold one of random or NumPy, or set multiprocessing_context="
                "'fork'"
            )


def leave_group() -> None:
    """Leave the process group of the trainer: ^C and SIGTERM to it mean the run, which ends at a boundary.

    SIGTERM still ends the worker: with it torch ends one that is stuck.
    """
    with suppress(PermissionError):  # it leads a session
        os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def end_with_the_trainer() -> None:
    """Let this worker end when the trainer is killed, if torch would not notice: a fork server has started it.

    torch looks whether the worker still has the parent that it began with. With "forkserver" (the default of Python
    3.14) that is the server, and the server lives as long as one of its workers does.
    """
    trainer = multiprocessing.parent_process()
    if trainer is not None and trainer.pid != os.getppid():
        threading.Thread(target=_end_after, args=(trainer,), name="end with the trainer", daemon=True).start()


def _end_after(trainer: Any) -> None:
    trainer.join()
    os._exit(1)


def warm_up(dataset: Any, index: Any) -> None:
    """Read an item and drop it: a data set may make its generator when the first item is read."""
    read = getattr(dataset, "__getitems__", None)
    with suppress(Exception):
        read([index]) if read else dataset[index]
