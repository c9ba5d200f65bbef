"""The lifelines of a trainer's process, beside those of `tolariad.lifelines`: the run's lock, and stacks on request.

Promises: at most one trainer of a run is alive. A trainer that hangs in a C call still writes its stacks.
"""

from __future__ import annotations

import faulthandler
import fcntl
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tolariad import run_files
from tolariad.lifelines import ProcessError
from tolariad.signals import STACKS

if TYPE_CHECKING:
    from pathlib import Path

LOCK_WAIT_S: Final = 60.0


def lock_run(run_dir: Path, each: Callable[[], None]) -> int:
    """Lock `<run>/trainer.lock`, write the pid into it and return the descriptor. `each` is called while waiting.

    Raises ProcessError if another trainer holds the lock for a minute.
    """
    descriptor = run_files.open_file(run_dir, "trainer.lock", os.O_RDWR | os.O_CREAT)
    give_up = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() > give_up:
                holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
                raise ProcessError(f"{run_dir}/trainer.lock is held by process {holder or 'unknown'}") from None
            each()
            time.sleep(0.05)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def dump_stacks_on_request(run_dir: Path, suffix: str = "") -> None:
    """On the signal STACKS, write every thread's stack to `<run>/logs/trainer.stacks`, even during a hanging C call."""
    run_files.make_folder(run_dir, "logs")
    descriptor = run_files.open_file(run_dir, f"logs/trainer{suffix}.stacks", os.O_WRONLY | os.O_CREAT)
    os.ftruncate(descriptor, 0)
    # It is open from now on: a signal handler must not open files.
    faulthandler.register(STACKS, file=descriptor, all_threads=True)
