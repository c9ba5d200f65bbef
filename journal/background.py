"""Threads that may wait: they fill spares and pack segments, and step back for everything else."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Final

_NICE: Final = 10


def be_nice() -> None:
    """Make the calling thread an ordinary one of low priority, whatever the thread that started it was."""
    # A new thread inherits its maker's class: one that fills disks under SCHED_FIFO would keep the trainer waiting.
    with contextlib.suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
