"""Files as the daemon's event loop uses them: through aiofiles, under the rules of `run_files`.

Promises: the loop waits for no disk. Each call runs in a daemon thread of its own, so a disk that hangs delays neither
the loop nor the end of the process. asyncio's own executor would, because loop and interpreter join its threads.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

import aiofiles

from tolariad import run_files

P = ParamSpec("P")
T = TypeVar("T")


class _DaemonThreads(Executor):
    """Start a thread for each call: about 50 us, for calls that come a few times a second at most."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:  # noqa: BLE001 - the waiting coroutine raises it
                future.set_exception(error)
            else:
                future.set_result(result)

        threading.Thread(target=run, name="tolaria-file", daemon=True).start()
        return future


_THREADS: Final = _DaemonThreads()


async def read_run_file(folder: Path, name: str, bytes_max: int, offset: int = 0) -> bytes:
    """Return up to `bytes_max` bytes of a run's file, from `offset` on. Raises as `run_files.open_file`."""

    def opener(_: str, flags: int) -> int:
        return run_files.open_file(folder, name, flags)

    async with aiofiles.open(folder / name, "rb", buffering=0, opener=opener, executor=_THREADS) as file:
        await file.seek(offset)
        return await file.read(bytes_max) or b""


async def read_own_text(path: Path) -> str:
    """Return the text of a file that lies in this package. Raises OSError."""
    async with aiofiles.open(path, encoding="utf-8", executor=_THREADS) as file:
        return await file.read()


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `function`, which looks at a file or at a disk, in a thread. Raises what it raises."""
    return await asyncio.get_running_loop().run_in_executor(_THREADS, functools.partial(function, *args, **kwargs))
