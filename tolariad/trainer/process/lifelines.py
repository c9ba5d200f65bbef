"""Tie the trainer's process to its daemon and its children to itself, before torch is imported.

Promises: the process dies with its daemon. At most one trainer of a run is alive. DataLoader workers die with the
trainer and keep neither its channel nor its lock.
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import fcntl
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NoReturn

from tolariad import run_files

if TYPE_CHECKING:
    from pathlib import Path

LOCK_WAIT_S: Final = 60.0
_PR_SET_PDEATHSIG: Final = 1
# Higher than the daemon's: if memory runs out, the system should kill the trainer first.
_OOM_SCORE: Final = 500


class ProcessError(Exception):
    """The process cannot be set up as a trainer. The text gives the reason."""


def die_with_parent(parent_pid: int) -> None:
    """Ask for SIGKILL when the parent ends. Raises ProcessError if it has ended already."""
    _set_death_signal()
    # If the parent ended between fork and here, the signal would never be sent.
    if os.getppid() != parent_pid:
        raise ProcessError(f"the daemon (pid {parent_pid}) has ended")


def _set_death_signal() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise ProcessError(f"prctl(PR_SET_PDEATHSIG) failed: {os.strerror(ctypes.get_errno())}")


def ignore_terminal_signals() -> None:
    """Ignore ^C and SIGTERM: the daemon handles them and orders what follows."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def be_ordinary() -> None:
    """Leave a real-time scheduling class inherited from the daemon: torch's threads would starve all others."""
    if os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK in (os.SCHED_FIFO, os.SCHED_RR):
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def lock_run(run_dir: Path, each: Callable[[], None]) -> int:
    """Lock `<run>/trainer.lock`, write the pid into it and return the descriptor. `each` is called while waiting.

    Raises ProcessError if another trainer holds the lock for a minute.
    """
    descriptor = run_files.open_file(run_dir, "trainer.lock", os.O_RDWR | os.O_CREAT)
    give_up = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() > give_up:
                holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
                raise ProcessError(f"{run_dir}/trainer.lock is held by process {holder or 'unknown'}") from None
            each()
            time.sleep(0.05)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def guard_children(descriptors: tuple[int, ...]) -> None:
    """Make every forked child die with the trainer, and close the trainer's channel and lock at once.

    A DataLoader worker would otherwise hold both for up to five seconds after the trainer's end.
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


def offer_as_victim() -> None:
    """Raise this process's out-of-memory score. A refusal is ignored."""
    try:
        with open("/proc/self/oom_score_adj", "r+", encoding="ascii") as file:  # noqa: PTH123 - a file of the kernel's
            if int(file.read()) < _OOM_SCORE:
                file.seek(0)
                file.write(str(_OOM_SCORE))
    except OSError:
        return


def dump_stacks_on_request(run_dir: Path) -> None:
    """On SIGUSR2, write every thread's stack to `<run>/logs/trainer.stacks`, even inside a C call that hangs."""
    run_files.make_folder(run_dir, "logs")
    descriptor = run_files.open_file(run_dir, "logs/trainer.stacks", os.O_WRONLY | os.O_CREAT)
    os.ftruncate(descriptor, 0)
    # It is open from now on: a signal handler must not open files.
    faulthandler.register(signal.SIGUSR2, file=descriptor, all_threads=True)


def leave(code: int) -> NoReturn:
    """End the process: run the exit hooks and flush the output, but do not tear down torch's modules.

    The teardown takes most of a second, and a stopping daemon, or the next trainer, would wait for it.
    """
    atexit._run_exitfuncs()  # noqa: SLF001 - the interpreter itself would call this
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)
