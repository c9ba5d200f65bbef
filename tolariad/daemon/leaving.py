"""The last work of a daemon: each piece in a named thread of its own, with a time limit.

Promises: work that does not end is logged with its stack and abandoned. It cannot keep the process alive, because its
thread is a daemon thread.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any, Final

_log: Final = logging.getLogger(__name__)

_SAY_S: Final = 5.0
_TASKS_S: Final = 5.0


async def finish(what: str, work: Callable[[], None], *, limit_s: float, say_s: float = _SAY_S) -> bool:
    """Run blocking `work` in a thread, for `limit_s` at most. Return whether it ended. Raises the errors of `work`.

    The loop's executor is not used: the loop and the interpreter wait for its threads when they end.
    """
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised again by the waiting coroutine
            raised.append(error)
        with suppress(RuntimeError):  # the loop is closed: the limit has passed
            loop.call_soon_threadsafe(ended.set)

    thread = threading.Thread(target=run, name=f"tolaria-end-{what.replace(' ', '-')}", daemon=True)
    thread.start()
    begun, said = time.monotonic(), 0.0
    while not await _within(ended, min(say_s, max(limit_s - said, 0.01))):
        said = time.monotonic() - begun
        if said >= limit_s:
            _log.critical(
                "%s has not ended in %.0f s. The daemon exits without it. Its stack:\n%s",
                what,
                said,
                _where(thread),
            )
            return False
        _log.warning("%s has taken %.0f s so far. Its stack:\n%s", what, said, _where(thread))
    if raised:
        raise raised[0]
    return True


async def cancel(tasks: Collection[asyncio.Task[Any]], *, limit_s: float = _TASKS_S) -> None:
    """Cancel the tasks and wait until they have ended. Log those that have not after `limit_s`."""
    for task in tasks:
        task.cancel()
    if not tasks:
        return
    _, left = await asyncio.wait(tasks, timeout=limit_s)
    for task in left:
        _log.critical("Task %s does not end after it was cancelled: %s", task.get_name(), task.get_stack(limit=4))


async def _within(ended: asyncio.Event, seconds: float) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await ended.wait()
    return ended.is_set()


def _where(thread: threading.Thread) -> str:
    frame = sys._current_frames().get(thread.ident or 0)  # noqa: SLF001 - no public access exists
    return "".join(traceback.format_stack(frame)).rstrip() if frame else "(none: the thread has ended)"
