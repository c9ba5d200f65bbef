"""The last things a daemon does: each in a thread of its own, named, and none of them waited for without end.

Promises: work that does not end is said, with the place where it hangs, and left behind; it cannot keep the process, since
its thread is a daemon thread. It must not know: what the work is.
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
    """Do blocking `work` beside the loop, for `limit_s` at most. Returns whether it ended; what it raises is raised here.

    Not in the loop's executor: the end of the loop, and of the interpreter, would wait for its threads.
    """
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised again by whoever waits
            raised.append(error)
        with suppress(RuntimeError):  # nobody waits any more, and the loop is closed
            loop.call_soon_threadsafe(ended.set)

    thread = threading.Thread(target=run, name=f"tolaria-end-{what.replace(' ', '-')}", daemon=True)
    thread.start()
    begun, said = time.monotonic(), 0.0
    while not await _within(ended, min(say_s, max(limit_s - said, 0.01))):
        said = time.monotonic() - begun
        if said >= limit_s:
            _log.critical(
                "%s has not ended in %.0f s; leaving without it. It stands at:\n%s", what, said, _where(thread)
            )
            return False
        _log.warning("%s takes long (%.0f s so far); it stands at:\n%s", what, said, _where(thread))
    if raised:
        raise raised[0]
    return True


async def cancel(tasks: Collection[asyncio.Task[Any]], *, limit_s: float = _TASKS_S) -> None:
    """Cancel them and wait until they have ended; those that do not are named."""
    for task in tasks:
        task.cancel()
    if not tasks:
        return
    _, left = await asyncio.wait(tasks, timeout=limit_s)
    for task in left:
        _log.critical("the task %s does not end: %s", task.get_name(), task.get_stack(limit=4))


async def _within(ended: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await ended.wait()
    except TimeoutError:
        return False
    return True


def _where(thread: threading.Thread) -> str:
    frame = sys._current_frames().get(thread.ident or 0)  # noqa: SLF001 - the only way to another thread's stack
    return "".join(traceback.format_stack(frame)).rstrip() if frame else "(its end)"
