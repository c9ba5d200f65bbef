"""Background threads of the journal. They fill spare segments and pack closed ones, at low priority."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Final

_NICE: Final = 10


def be_nice() -> None:
    """Give the calling thread the ordinary class and a low priority, whatever its parent thread had."""
    # A new thread inherits its parent's class. Filling disks under SCHED_FIFO would delay the trainer.
    with contextlib.suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
