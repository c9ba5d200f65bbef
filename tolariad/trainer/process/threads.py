"""Settings for the trainer's background threads."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import torch

_NICENESS: Final = 10


def stand_back() -> None:
    """Give the calling thread a lower priority than training. If the system refuses, the priority stays."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)


def same_device() -> Callable[[], None]:
    """Return a function for a new thread to call, after which its current CUDA device is that of this thread.

    Every thread begins with device 0: memory and streams would be of another GPU than the run's.
    """
    if not torch.cuda.is_initialized():
        return lambda: None
    device = torch.cuda.current_device()
    return lambda: torch.cuda.set_device(device)
