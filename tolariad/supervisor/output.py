"""Capture a process's output: pass it on line by line, and keep its last part for the record of the process's death.

Promises: reading never blocks, a flood of output never fills the memory, and a grandchild that keeps the pipe open
delays nothing. Sinks must not block.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Final

_READ_BYTES: Final = 64 * 1024
_LINE_BYTES_MAX: Final = 16 * 1024
_TAIL_BYTES: Final = 64 * 1024
_LAST_READS: Final = 32

Sink = Callable[[bytes], None]


class OutputCapture:
    """Reads one pipe on the event loop until `finish` is called."""

    def __init__(self, descriptor: int, sinks: tuple[Sink, ...], *, pause_s: float = 0.0) -> None:
        """`pause_s`: the pause after each read, in seconds, so that a flood takes only a share of the loop's time."""
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._sinks = sinks
        self._partial = b""
        self._tail = bytearray()
        self._loop = asyncio.get_running_loop()
        self._pause_s = pause_s
        self._paused: asyncio.TimerHandle | None = None
        self._resume()

    def _resume(self) -> None:
        self._loop.add_reader(self._descriptor, self._read_once)

    def _read_once(self) -> None:
        if self._read_some() and self._pause_s:
            self._loop.remove_reader(self._descriptor)
            self._paused = self._loop.call_later(self._pause_s, self._resume)

    def _read_some(self) -> bool:
        """Read once; the loop calls this again while there is more. Return False if there is nothing to read."""
        try:
            piece = os.read(self._descriptor, _READ_BYTES)
        except BlockingIOError:
            return False
        if not piece:
            self._loop.remove_reader(self._descriptor)
            return False
        self._take(piece)
        return True

    def _take(self, piece: bytes) -> None:
        self._tail += piece
        del self._tail[:-_TAIL_BYTES]
        lines = (self._partial + piece).split(b"\n")
        self._partial = lines.pop()
        if lines:
            self._put(b"\n".join(lines) + b"\n")
        if len(self._partial) > _LINE_BYTES_MAX:
            self._put(self._partial + b"\n")
            self._partial = b""

    def _put(self, lines: bytes) -> None:
        for sink in self._sinks:
            sink(lines)

    def finish(self) -> str:
        """Read the rest of the pipe, close it, and return the last 64 KiB of output as text.

        It does not wait for end-of-file: a grandchild that inherited the pipe could keep it open for ever.
        """
        if self._paused is not None:
            self._paused.cancel()
        for _ in range(_LAST_READS):
            if not self._read_some():
                break
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
        if self._partial:
            self._put(self._partial + b"\n")
            self._partial = b""
        return self._tail.decode("utf-8", "replace")
