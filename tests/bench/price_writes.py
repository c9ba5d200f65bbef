"""A process that makes bare durable writes, on the recorder's core and in its class, while its first argument's file
says so.

    python -S -m tests.bench.price_writes FLAG FILE PARENT CORE...

What a loop beside it pays is what any recorder costs that writes as often, whatever it is written in: the machine's
price.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
import time
from pathlib import Path

PERIOD_S = 0.0012  # and the write itself: about one a step of the digits' network
FILE_BYTES = 1 << 20


def main(flag: str, file: str, parent: str, *cores: str) -> None:
    """Until the parent is gone."""
    os.sched_setaffinity(0, {int(core) for core in cores})
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    piece = mmap.mmap(-1, FILE_BYTES)
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_DSYNC | getattr(os, "O_DIRECT", 0))
    os.pwrite(descriptor, piece, 0)
    page, at = memoryview(piece)[:4096], 0
    with Path(flag).open("r+b") as shared:
        asked = mmap.mmap(shared.fileno(), 1)
    while os.getppid() == int(parent):
        if asked[0]:
            os.pwrite(descriptor, page, at)
            at = (at + 4096) % FILE_BYTES
        time.sleep(PERIOD_S)


if __name__ == "__main__":
    main(*sys.argv[1:])
