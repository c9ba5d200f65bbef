"""The cores of all threads of a process."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import Final

_PASSES_MAX: Final = 8


def pin(pid: int, cores: Collection[int]) -> None:
    """Pin every thread of a process. Repeat until no new thread has appeared. Raises OSError."""
    done: set[int] = set()
    for _ in range(_PASSES_MAX):
        threads = {int(entry.name) for entry in Path(f"/proc/{pid}/task").iterdir()} - done
        if not threads:
            return
        for thread in threads:
            try:
                os.sched_setaffinity(thread, cores)
            except ProcessLookupError:
                # The thread has ended. If it was the last one, the next listing raises.
                continue
        done |= threads
