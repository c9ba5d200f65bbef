"""Wait for a word of shared memory, and wake who waits: Linux' futex, for which Python has no function.

Both calls are full memory barriers. So what was stored before `wake` is seen by whoever sees a later store, on
processors that reorder stores too. Other threads of the program run while one waits.
"""

from __future__ import annotations

import ctypes
import platform
import time
from typing import Final

# The number of the system call. On another machine a waiting rank sleeps instead.
_NUMBERS: Final = {"x86_64": 202, "aarch64": 98}
_NUMBER: Final = _NUMBERS.get(platform.machine())
_WAIT, _WAKE = 0, 1
_EVERYBODY: Final = 2**31 - 1
_UNKNOWN_MACHINE_S: Final = 0.0002
_syscall: Final = ctypes.CDLL(None, use_errno=True).syscall


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def wait(address: int, seen: int, limit_s: float) -> None:
    """Sleep until somebody wakes `address`, for `limit_s` at most, unless its low 32 bits differ from those of `seen`.

    `address`: where an aligned word of eight bytes, little-endian, lies in a shared mapping. A wake may be lost between
    two processes, so a short limit is all that it costs.
    """
    if _NUMBER is None:
        time.sleep(min(limit_s, _UNKNOWN_MACHINE_S))
        return
    limit = _Timespec(int(limit_s), int(limit_s % 1 * 1e9))
    where, low = ctypes.c_void_p(address), ctypes.c_uint32(seen & 0xFFFF_FFFF)
    _syscall(_NUMBER, where, _WAIT, low, ctypes.byref(limit), None, 0)


def wake(address: int) -> None:
    """Wake everybody who waits for `address`."""
    if _NUMBER is not None:
        _syscall(_NUMBER, ctypes.c_void_p(address), _WAKE, _EVERYBODY, None, None, 0)
