"""Signals to the processes of a run: the daemon acts on them, and the processes that it starts ignore them.

Service managers and job schedulers send a signal to a process group, or to every process of a cgroup. Promises: such a
signal stops or saves the run once, through the daemon. It ends no process that the daemon has started, and none that
the daemon is just starting. Before a daemon is ready to act on a signal, the signal waits or ends the start.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

# Those that the daemon acts on.
DAEMONS: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2})
# Those that wait while the daemon starts. SIGTERM and ^C end the start instead.
WAITING: Final = frozenset({signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2})
# Asks a process for the stacks of its threads. People and schedulers send none of the real-time signals. A request for
# stacks must not come from them: reading the stacks of running threads may crash the interpreter.
STACKS: Final = signal.SIGRTMAX if sys.platform == "linux" else signal.SIGUSR2


class Terminated(SystemExit):
    """SIGTERM came while a run was being opened, so nothing was started."""


def hold() -> Callable[[], None]:
    """Keep the signals in WAITING until somebody unblocks them; SIGTERM raises Terminated. In the main thread only.

    As process 1 of a container a process would not even receive a SIGTERM for which it has no handler. Return a
    function that restores what was before.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, WAITING)
    handler = signal.signal(signal.SIGTERM, _terminated)

    def restore() -> None:
        signal.signal(signal.SIGTERM, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    return restore


def _terminated(number: int, _frame: FrameType | None) -> None:
    raise Terminated(128 + number)


@contextmanager
def kept_from_new_processes() -> Iterator[None]:
    """Block the daemon's signals in this thread, so that a process started in the block begins with them blocked."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, DAEMONS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def leave_to_the_daemon() -> None:
    """Ignore the daemon's signals in this process and in what it starts, also those that came before this call."""
    for one in DAEMONS:
        signal.signal(one, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, DAEMONS)
