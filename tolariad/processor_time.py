"""How long threads have waited for a processor: time that is the machine's, not the program's.

Promises: needs no torch and no privilege. On a system without these figures the wait is 0, so that nothing is excused.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def waited_s(threads: Iterable[int]) -> float:
    """Return how long these threads have been ready to run without running, in seconds since they began.

    `threads`: ids of the system (`threading.get_native_id`), also of other processes; the id of a process is that of
    its main thread. A thread that is gone, or 0, counts 0. A call takes about 10 µs a thread.
    """
    return sum(map(_waited_ns, set(threads))) / 1e9


def _waited_ns(thread: int) -> int:
    """Return the second number of schedstat: ns on a run queue (Documentation/scheduler/sched-stats.rst)."""
    try:
        return int(Path(f"/proc/{thread}/schedstat").read_bytes().split()[1])
    except (OSError, IndexError, ValueError):
        return 0
