"""What the threads beside training have in common. It must not know: what any of them does."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import Final

_NICENESS: Final = 10


def stand_back() -> None:
    """Give the calling thread a lower priority than training; where that is refused, they compete on equal terms."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
