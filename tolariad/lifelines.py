"""Tie a process to the daemon that started it, and its children to itself, before it imports anything large.

Trainer, strategy and analysis use it. Promises: the process dies with its daemon, and its forked children die with it.
They keep none of the descriptors that belong to it.
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import os
import signal
import sys
import time
from typing import Final, NoReturn

from tolariad import signals

_PR_SET_PDEATHSIG: Final = 1
# Higher than the daemon's: if memory runs out, the system should kill the trainer first, and a helper before it.
TRAINER_SCORE: Final = 500
HELPER_SCORE: Final = 1000
_AUTOGROUP_TRIES: Final = 10
_AUTOGROUP_PAUSE_S: Final = 0.11


class ProcessError(Exception):
    """The process cannot be set up. The text gives the reason."""


def die_with_parent(parent_pid: int) -> None:
    """Ask for SIGKILL when the parent ends. Raises ProcessError if it has ended already."""
    _set_death_signal()
    # If the parent ended between fork and here, the signal would never be sent.
    if os.getppid() != parent_pid:
        raise ProcessError(f"the daemon (pid {parent_pid}) has ended")


def become_helper(parent_pid: int, descriptor: int) -> None:
    """Tie a process that the run can do without to its daemon.

    `descriptor` is the descriptor of the process's connection to the daemon. If the process does not answer, the signal
    STACKS makes it write its stacks to stderr. Raises ProcessError.
    """
    die_with_parent(parent_pid)
    be_ordinary()
    signals.leave_to_the_daemon()
    offer_as_victim(HELPER_SCORE)
    faulthandler.register(signals.STACKS, all_threads=True)
    guard_children((descriptor,))


def _set_death_signal() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise ProcessError(f"prctl(PR_SET_PDEATHSIG) failed: {os.strerror(ctypes.get_errno())}")


def be_ordinary() -> None:
    """Leave a real-time scheduling class inherited from the daemon: torch's threads would starve all others."""
    if os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK in (os.SCHED_FIFO, os.SCHED_RR):
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def guard_children(descriptors: tuple[int, ...]) -> None:
    """Make every forked child die with this process, and close these descriptors at once.

    A DataLoader worker would otherwise hold a trainer's channel and lock for up to five seconds after its end.
    """

    def in_child() -> None:
        _set_death_signal()
        # The child inherits SIGTERM as ignored. A pool that ends its workers with SIGTERM would wait for ever.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        for descriptor in descriptors:
            try:
                os.close(descriptor)
            except OSError:
                # It was closed before the fork, so the child never had it.
                continue

    os.register_at_fork(after_in_child=in_child)
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)


def offer_as_victim(score: int) -> None:
    """Raise this process's out-of-memory score to `score`. A refusal is ignored."""
    try:
        with open("/proc/self/oom_score_adj", "r+", encoding="ascii") as file:  # noqa: PTH123 - a file of the kernel's
            if int(file.read()) < score:
                file.seek(0)
                file.write(str(score))
    except OSError:
        return


def be_the_nicest_session() -> None:
    """Give the session of this process the least share of a core, if it leads one. Raises OSError.

    The kernel shares a core between sessions before it looks at the priorities of processes (sched(7), autogroup). A
    session of its own gets half of a core beside another one, however idle its only process is.
    """
    if os.getsid(0) != os.getpid():
        return
    for _ in range(_AUTOGROUP_TRIES):
        try:
            with open("/proc/self/autogroup", "w", encoding="ascii") as file:  # noqa: PTH123 - a file of the kernel's
                file.write("19")
        except BlockingIOError:
            # Without privileges, one write in 0.1 s is allowed in the whole system.
            time.sleep(_AUTOGROUP_PAUSE_S)
        else:
            return


def leave(code: int) -> NoReturn:
    """End the process: run the exit hooks and flush the output, but do not tear down torch's modules.

    The teardown takes most of a second, and a stopping daemon, or the next trainer, would wait for it.
    """
    atexit._run_exitfuncs()  # noqa: SLF001 - the interpreter itself would call this
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)
