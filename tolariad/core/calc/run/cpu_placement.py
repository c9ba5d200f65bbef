"""Which cores the recorder and the trainer run on, and how the recorder waits, decided from the machine's resources.

A recorder with a core of its own polls the step ring, so that no step pays for waking it. It also asks for SCHED_FIFO,
so that no other process delays the trainer at its gate. Without a core of its own the recorder does none of this: each
would take time from the trainer.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import msgspec

FIFO_PRIORITY: Final = 1
_MS: Final = 1_000_000
# For steps this long the recorder sleeps: being woken is then a small part of them.
_POLLED_NS: Final = 5 * _MS
PAUSE_S: Final = 100e-6
# The recorder does not poll before this share of the shortest recent step has passed. After that it polls at most this
# many times a step.
_EARLIEST: Final = 0.75
_LOOKS_A_STEP: Final = 8
_QUICKEST_OF: Final = 8


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The cores that this process may use, and the one that the journal's disk interrupts, if that is known.

    `chosen_by`: who has chosen these cores among those of the machine, and wants to keep them; empty: nobody.
    """

    cores: tuple[int, ...]
    disk_core: int | None = None
    chosen_by: str = ""


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """The resources of a trainer: torch threads, processes that load its data, and whether a GPU does the work."""

    threads: int
    workers: int = 0
    on_gpu: bool = False


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The cores of daemon and trainer. If both are empty, no process is pinned. `why` is for people."""

    daemon_cores: tuple[int, ...] = ()
    trainer_cores: tuple[int, ...] = ()
    why: str

    @property
    def is_apart(self) -> bool:
        """Return whether the recorder has a core of its own: it is pinned, polls, and asks for SCHED_FIFO."""
        return bool(self.daemon_cores)


def plan(machine: Machine, demand: Demand) -> Plan:
    """Return which process gets which core.

    On a GPU the torch threads and the workers are mostly idle, so a core that they do not use is free. On the CPU each
    of them computes.
    """
    if machine.chosen_by:
        return Plan(why=f"{machine.chosen_by} has chosen its cores itself, and keeps them")
    cores = len(machine.cores)
    busy = demand.threads if demand.on_gpu else demand.threads + demand.workers
    if busy >= cores:
        who = f"{demand.threads} torch threads" + (f" and {demand.workers} workers" if busy > demand.threads else "")
        return Plan(why=f"{who} leave none of {cores} cores free")
    own = machine.disk_core if machine.disk_core in machine.cores else machine.cores[-1]
    others = tuple(core for core in machine.cores if core != own)
    return Plan(daemon_cores=(own,), trainer_cores=others, why=f"core {own} is the recorder's")


class Pace:
    """The pace of steps, computed from the times at which they were taken."""

    def __init__(self) -> None:
        self._intervals: deque[int] = deque(maxlen=_QUICKEST_OF)
        self._last_ns = 0

    def took(self, steps: int, mono_ns: int) -> None:
        """Record that this many steps arrived together at this time."""
        if self._last_ns:
            self._intervals.append((mono_ns - self._last_ns) // steps)
        self._last_ns = mono_ns

    def forget(self) -> None:
        """Forget the pace, because a new trainer has another one."""
        self._intervals.clear()
        self._last_ns = 0

    def pauses_s(self, mono_ns: int) -> tuple[float, float] | None:
        """Return how long a polling recorder may sleep now, and between polls after that; None: until it is woken.

        The first sleep is long, to leave the machine alone (two virtual cores may share one real core). After that it
        is an eighth of a step, at least 100 µs. A step that comes sooner than all recent ones waits for the rest of the
        sleep, during the forward pass of the next step.
        """
        if not self._intervals:
            return None
        quickest = min(self._intervals)
        since = mono_ns - self._last_ns
        if quickest >= _POLLED_NS or since > 4 * quickest + _POLLED_NS:
            return None
        between_s = max(PAUSE_S, quickest / _LOOKS_A_STEP / 1e9)
        return max(between_s, (quickest * _EARLIEST - since) / 1e9), between_s
