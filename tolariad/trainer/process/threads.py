"""Settings for the trainer's background threads."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import Final

_NICENESS: Final = 10


def stand_back() -> None:
    """Give the calling thread a lower priority than training. If the system refuses, the priority stays."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
