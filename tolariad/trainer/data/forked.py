"""Try something in a forked child, and keep what it said: the user's objects of this process are not touched.

Promises: the child ends with the block, also if it hangs. It writes nothing to stdout, holds none of a run's files, and
a signal to the process group does not reach it. Files of this process stay at their positions: the child opens them
again. It has no connection, no pipe and no stdin of this process: what it would read there would be missing here.
"""

from __future__ import annotations

import fcntl
import gc
import os
import select
import signal
import stat
import struct
import time
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec
import torch

from tolariad.processor_time import waited_s
from tolariad.trainer.data.workers import leave_group

Send: TypeAlias = Callable[[Any], None]
_LENGTH: Final = struct.Struct("<I")
_READ_BYTES: Final = 1 << 16


def said_by_child(work: Callable[[Send], None], limit_s: float) -> Iterator[Any]:
    """Yield what `work` sends in a child: plain data. It has so many seconds, without its waits for a processor."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # Python warns of every fork of a process with threads. A loader's workers are such forks too.
        warnings.simplefilter("ignore")
        pid = os.fork()
    if pid == 0:
        _be_the_child(work, reading, writing)
    os.close(writing)
    try:
        yield from _messages(reading, pid, limit_s)
    finally:
        os.close(reading)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):  # the program ignores SIGCHLD
            os.waitpid(pid, 0)


def _be_the_child(work: Callable[[Send], None], reading: int, writing: int) -> None:
    """Do the work and end, whatever it raises."""
    try:
        os.close(reading)
        gc.disable()  # what is no child of this process says so loudly when it is collected here
        leave_group()
        _part_from_files({2, writing})
        # The threads of the parent's pool do not exist here.
        torch.set_num_threads(1)

        with os.fdopen(writing, "wb") as pipe:

            def send(message: Any) -> None:
                body = msgspec.msgpack.encode(message)
                pipe.write(_LENGTH.pack(len(body)) + body)
                pipe.flush()

            work(send)
    finally:
        os._exit(0)


def _part_from_files(kept: Collection[int]) -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in [int(one.name) for one in Path("/proc/self/fd").iterdir()]:
        with suppress(OSError):  # one that was open for listing the folder, or that may not be opened again
            mode = os.fstat(number).st_mode
            if number in kept or number == nothing:
                continue
            if number <= 1 or stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode):
                os.dup2(nothing, number)
            elif stat.S_ISREG(mode):
                again = os.open(f"/proc/self/fd/{number}", fcntl.fcntl(number, fcntl.F_GETFL))
                os.lseek(again, os.lseek(number, 0, os.SEEK_CUR), os.SEEK_SET)
                os.dup2(again, number)
                os.close(again)


def _messages(reading: int, pid: int, limit_s: float) -> Iterator[Any]:
    held, begun = b"", time.monotonic()
    while True:
        while len(held) >= _LENGTH.size and len(held) >= _LENGTH.size + _LENGTH.unpack_from(held)[0]:
            end = _LENGTH.size + _LENGTH.unpack_from(held)[0]
            yield msgspec.msgpack.decode(held[_LENGTH.size : end])
            held = held[end:]
        left = limit_s + waited_s((pid,)) - (time.monotonic() - begun)
        if left <= 0.0:
            return
        if not select.select([reading], [], [], left)[0]:
            continue
        more = os.read(reading, _READ_BYTES)
        if not more:
            return
        held += more
