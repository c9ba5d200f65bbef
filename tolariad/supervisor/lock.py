"""`trainer.lock`: the lock that proves that a trainer of this run exists, whichever daemon started it.

Promise: checking the lock does not keep it.
"""

from __future__ import annotations

import fcntl
import os
import signal
from pathlib import Path
from typing import Final

import msgspec

from tolariad import run_files
from tolariad.boot import boot_id
from tolariad.supervisor.procfs import is_running

LOCK_NAME: Final = "trainer.lock"
_LOCK_BYTES_MAX: Final = 64  # a process number


class FormerTrainer(msgspec.Struct, frozen=True):
    """The last trainer in the journal. After a reboot its pid may belong to another process, so `boot` is kept too."""

    pid: int
    start_ticks: int
    boot: str

    @property
    def runs(self) -> bool:
        """Whether exactly this process still exists."""
        return self.boot == boot_id() and is_running(self.pid, self.start_ticks)

    def kill_group(self) -> None:
        """Kill its process group, if exactly this process still exists."""
        if not self.runs:
            return
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            return


def is_held(folder: Path) -> bool:
    """Return whether a process holds the run's trainer lock now."""
    try:
        descriptor = run_files.open_file(folder, LOCK_NAME, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def holder_pid(folder: Path) -> int:
    """Return the pid that the holder wrote into the lock, or 0. Use it in messages only: it may be stale."""
    try:
        text = run_files.read_file(folder, LOCK_NAME, _LOCK_BYTES_MAX).decode("ascii", "replace").strip()
    except OSError:
        return 0
    return int(text) if text.isdecimal() else 0
