"""Which cores the recorder and the trainer run on, and how the recorder waits: decided from what the machine has.

A recorder on a core of its own polls the step ring, so that no step pays for waking it, and asks for SCHED_FIFO, so that
no neighbour keeps the trainer at its gate. Without one, each of the three would take time from the trainer: then none.
It must not know: /proc, system calls, threads.
"""

from __future__ import annotations

from typing import Final

import msgspec

FIFO_PRIORITY: Final = 1
_US: Final = 1_000
_MS: Final = 1_000_000
# For so long after a record the next one is looked for often, then seldom; behind that the recorder sleeps and is woken.
_OFTEN_NS: Final = 3 * _MS
_SELDOM_NS: Final = 100 * _MS
_OFTEN_PAUSE_S: Final = 100 * _US / 1e9
_SELDOM_PAUSE_S: Final = 1 * _MS / 1e9


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The cores this process may run on, and the one that the journal's disk interrupts, where that can be told."""

    cores: tuple[int, ...]
    disk_core: int | None = None


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """What a trainer computes with: torch threads, processes that load its data, and whether a GPU does the work."""

    threads: int
    workers: int = 0
    on_gpu: bool = False


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Cores of the daemon and of the trainer; both empty: nobody is pinned. `why` is for people."""

    daemon_cores: tuple[int, ...] = ()
    trainer_cores: tuple[int, ...] = ()
    why: str

    @property
    def is_apart(self) -> bool:
        """The recorder has a core of its own: it is pinned, polls, and asks for SCHED_FIFO."""
        return bool(self.daemon_cores)


def plan(machine: Machine, demand: Demand) -> Plan:
    """Who gets which core.

    On a GPU the torch threads and the workers are mostly idle, so a core they leave to themselves is free; on the CPU
    every one of them computes.
    """
    cores = len(machine.cores)
    busy = demand.threads if demand.on_gpu else demand.threads + demand.workers
    if busy >= cores:
        who = f"{demand.threads} torch threads" + (f" and {demand.workers} workers" if busy > demand.threads else "")
        return Plan(why=f"{who} leave none of {cores} cores free")
    own = machine.disk_core if machine.disk_core in machine.cores else machine.cores[-1]
    others = tuple(core for core in machine.cores if core != own)
    return Plan(daemon_cores=(own,), trainer_cores=others, why=f"core {own} is the recorder's")


def polling_pause_s(idle_ns: int) -> float | None:
    """How long a polling recorder sleeps before it looks again, so long after the last record; None: until it is woken.

    A step of 3 ms or more hides a millisecond behind its forward pass, so it is not looked for every 100 µs.
    """
    if idle_ns < _OFTEN_NS:
        return _OFTEN_PAUSE_S
    return _SELDOM_PAUSE_S if idle_ns < _SELDOM_NS else None
