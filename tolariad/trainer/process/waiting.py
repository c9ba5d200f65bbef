"""A spare trainer: it imports what every trainer needs, gives way to training meanwhile, and waits for its turn.

It runs nothing of the user's code, opens no device, and reads no file of the run.
"""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_READY: Final = b"r"
_MESSAGE_BYTES_MAX: Final = 65_536
# At full load this leaves a tenth of a core: enough to be ready within half a minute.
_NICENESS: Final = 10
# RLIMIT_NICE counts downwards from 20: so much allows an ordinary priority again.
_ORDINARY: Final = 20


def wait_to_train(descriptor: int) -> str | None:
    """Import torch, say so, and wait. Return the mark of the last printed traceback, or None if there is no turn."""
    with socket.socket(fileno=descriptor) as daemon:
        # Forked children of imported code must not hold it.
        daemon.set_inheritable(False)
        with giving_way():
            _import()
        daemon.send(_READY)
        message = daemon.recv(_MESSAGE_BYTES_MAX)
    return message[1:].decode() if message else None


def _import() -> None:
    from tolariad.trainer.torch_private import light_start

    light_start.install()
    import tolariad.trainer.build
    import tolariad.trainer.loop
    import tolariad.trainer.process.lifecycle  # noqa: F401


@contextmanager
def giving_way() -> Iterator[None]:
    """Run the block with a low priority, if this process may have its own back afterwards."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    if os.geteuid() != 0 and resource.getrlimit(resource.RLIMIT_NICE)[0] < _ORDINARY - before:
        yield
        return
    os.setpriority(os.PRIO_PROCESS, 0, _NICENESS)
    try:
        yield
    finally:
        # Threads that the block has started have inherited it.
        for thread in Path("/proc/self/task").iterdir():
            with suppress(ProcessLookupError):
                os.setpriority(os.PRIO_PROCESS, int(thread.name), before)
