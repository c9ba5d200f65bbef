"""How a process ended that is no child of this one.

`waitid` tells that of children only. Of a process that nobody has reaped /proc tells it. Of one that was reaped its
pidfd does, since Linux 6.15.
"""

from __future__ import annotations

import fcntl
import struct
from contextlib import suppress
from typing import Final

from tolariad.supervisor.process import Exit
from tolariad.supervisor.procfs import zombie_status

# include/uapi/linux/pidfd.h: struct pidfd_info in its first version, and the ioctl that fills it in.
_INFO_BYTES: Final = 64
_PIDFD_GET_INFO: Final = (3 << 30) | (_INFO_BYTES << 16) | (0xFF << 8) | 11
_INFO_EXIT: Final = 1 << 3
_INFO: Final = struct.Struct("=QQ11Ii")


def exit_of(pidfd: int, pid: int) -> Exit | None:
    """Return how the process ended; None if it has not, or if this system does not tell."""
    # Twice: it may be reaped after the first look at its pidfd, and before that at /proc.
    for _ in range(2):
        status = _of_reaped(pidfd)
        if status is None:
            status = zombie_status(pid)
        if status is not None:
            number = status & 0x7F
            return Exit(signal_number=number) if number else Exit(code=status >> 8 & 0xFF)
    return None


def _of_reaped(pidfd: int) -> int | None:
    info = bytearray(_INFO_BYTES)
    struct.pack_into("=Q", info, 0, _INFO_EXIT)
    with suppress(OSError):
        fcntl.ioctl(pidfd, _PIDFD_GET_INFO, info)
        mask, *_, status = _INFO.unpack(info)
        if mask & _INFO_EXIT:
            return int(status)
    return None
