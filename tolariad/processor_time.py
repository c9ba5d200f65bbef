"""How long threads have waited for a processor: time that is the machine's, not the program's.

Promises: needs no torch and no privilege. On a system without these figures the wait is 0, so that nothing is excused.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

_STARVED_NS: Final = 2_000_000_000


def waited_s(threads: Iterable[int]) -> float:
    """Return how long these threads have been ready to run without running, in seconds since they began.

    `threads`: ids of the system (`threading.get_native_id`), also of other processes; the id of a process is that of
    its main thread. A thread that is gone, or 0, counts 0. A call takes about 10 µs a thread.
    """
    return sum(map(_waited_ns, set(threads))) / 1e9


def has_starved(thread: int) -> bool:
    """Return whether a thread has been ready to run for seconds, and ran for less than a ninth of that time.

    It is for a young thread: the times are those since it began.
    """
    ran, waited = _schedstat(thread)
    return waited > _STARVED_NS and ran < waited / 9


def _waited_ns(thread: int) -> int:
    return _schedstat(thread)[1]


def _schedstat(thread: int) -> tuple[int, int]:
    """Return ns on a processor, and ns on a run queue (Documentation/scheduler/sched-stats.rst)."""
    try:
        ran, waited, _ = Path(f"/proc/{thread}/schedstat").read_bytes().split()
        return int(ran), int(waited)
    except (OSError, ValueError):
        return 0, 0
