"""Wait for a word of shared memory, and wake who waits: Linux' futex, for which Python has no function.

Both calls are full memory barriers. So what was stored before `wake` is seen by whoever sees a later store, on
processors that reorder stores too.
"""

from __future__ import annotations

import ctypes
import platform
from typing import Final

# The number of the system call. On another machine a waiting rank sleeps instead.
_NUMBERS: Final = {"x86_64": 202, "aarch64": 98}
_NUMBER: Final = _NUMBERS.get(platform.machine())
_WAIT, _WAKE = 0, 1
_EVERYBODY: Final = 2**31 - 1
_syscall: Final = ctypes.CDLL(None, use_errno=True).syscall


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


# At most so long: a wake that is lost between two processes costs no more.
_LONGEST: Final = ctypes.byref(_Timespec(0, 1_000_000))


def wait(address: int, seen: int) -> None:
    """Sleep until somebody wakes `address`, at most 1 ms, unless its low 32 bits differ from those of `seen` already.

    `address`: where an aligned word of eight bytes, little-endian, lies in a shared mapping.
    """
    if _NUMBER is not None:
        _syscall(_NUMBER, ctypes.c_void_p(address), _WAIT, ctypes.c_uint32(seen & 0xFFFF_FFFF), _LONGEST, None, 0)


def wake(address: int) -> None:
    """Wake everybody who waits for `address`."""
    if _NUMBER is not None:
        _syscall(_NUMBER, ctypes.c_void_p(address), _WAKE, _EVERYBODY, None, None, 0)
