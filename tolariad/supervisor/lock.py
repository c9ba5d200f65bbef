"""`trainer.lock`: the proof that a trainer of this run exists, whoever started it.

Promises: looking does not keep the lock. It must not know: what is done about a holder.
"""

from __future__ import annotations

import fcntl
import os
import signal
from pathlib import Path
from typing import Final

import msgspec

from tolariad import run_files
from tolariad.supervisor.procfs import boot_id, is_running

LOCK_NAME: Final = "trainer.lock"
_LOCK_BYTES_MAX: Final = 64  # a process number


class FormerTrainer(msgspec.Struct, frozen=True):
    """The last trainer the journal knows; `boot` keeps its number from meaning another process after a reboot."""

    pid: int
    start_ticks: int
    boot: str

    @property
    def runs(self) -> bool:
        """Whether that very process still exists."""
        return self.boot == boot_id() and is_running(self.pid, self.start_ticks)

    def kill_group(self) -> None:
        """End it with all it started, if it is still that very process."""
        if not self.runs:
            return
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            return


def is_held(folder: Path) -> bool:
    """Whether some process holds the run's trainer lock at this moment."""
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
    """The number a holder wrote into the lock; 0 where it wrote none. Good for a message, never for a signal."""
    try:
        text = run_files.read_file(folder, LOCK_NAME, _LOCK_BYTES_MAX).decode("ascii", "replace").strip()
    except OSError:
        return 0
    return int(text) if text.isdecimal() else 0
