"""Waits of tests: for something to become true, with an end."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Callable
from typing import TypeVar

# Long: nobody waits for it unless a test fails, and a machine may be twenty times as slow as usual.
PATIENCE_S = 120.0
_Found = TypeVar("_Found")


def processor_s() -> float:
    """Return how long processes that have ended were on a processor: a busy machine makes that hardly longer."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def within(seconds: float, condition: Callable[[], object]) -> bool:
    """Return whether `condition` holds within the time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def wait_for(condition: Callable[[], _Found], what: object = "", seconds: float = PATIENCE_S) -> _Found:
    """Wait until `condition()` is true, and return it. Fails after so many seconds."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what or condition} did not come about"
        time.sleep(0.002)
    return found


async def becomes_true(condition: Callable[[], object], seconds: float = PATIENCE_S) -> bool:
    """Return whether `condition` holds within the time; the loop runs meanwhile."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.01)
    return True
