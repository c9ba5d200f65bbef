"""A spare trainer: it imports what every trainer needs, gives way to training meanwhile, and waits for its turn.

It opens no device, holds no lock of the run, and writes no file of it. It runs the user's code only if it is to wait
with a task that is built.
"""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from tolariad.trainer.setup import Place, Setup

_READY: Final = b"r"
_MESSAGE_BYTES_MAX: Final = 65_536
# At full load this leaves a tenth of a core: enough to be ready within half a minute.
_NICENESS: Final = 10
# RLIMIT_NICE counts downwards from 20: so much allows an ordinary priority again.
_ORDINARY: Final = 20


class Turn(NamedTuple):
    """A spare's turn: the mark of the traceback that an earlier trainer printed, and the run if it is built."""

    printed: str
    setup: Setup | None


def wait_to_train(descriptor: int, prepare: Callable[[], Setup | None]) -> Turn | None:
    """Prepare, say so, and wait. Return None if there is no turn. Raises what `prepare` raises."""
    with socket.socket(fileno=descriptor) as daemon:
        # Forked children of imported code must not hold it.
        daemon.set_inheritable(False)
        with giving_way():
            setup = prepare()
        daemon.send(_READY)
        message = daemon.recv(_MESSAGE_BYTES_MAX)
    return Turn(message[1:].decode(), setup) if message else None


def imported() -> None:
    """Import torch and this package's trainer."""
    from tolariad.trainer.torch_private import light_start

    light_start.install()
    import tolariad.trainer.build
    import tolariad.trainer.loop
    import tolariad.trainer.process.lifecycle  # noqa: F401


def built(config: bytes, threads: int | None, place: Callable[[], Place]) -> Setup | None:
    """Build the run from the bytes of config.resolved.json, unless that might open a device: then import only.

    `place`: the rank that it will be. Nothing here meets the others. Raises as `build.build`.
    """
    imported()
    import torch

    from tolariad.core.calc.settings.rules import read_resolved
    from tolariad.trainer.build import build

    is_on_cpu = read_resolved(config).device == "cpu" or not torch.backends.cuda.is_built()
    return build(config, threads, place=place()) if is_on_cpu else None


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
