"""The trainer as a process: what must hold before torch is imported, and what forked children must not inherit.

Promises: the process dies with its daemon; at most one trainer of a run lives; DataLoader workers die with it and keep
neither its channel nor its lock. It must not know: torch, or what is trained.
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
# Above the daemon's: where memory is short, the trainer is what the kernel should take.
_OOM_SCORE: Final = 500


class ProcessError(Exception):
    """The process cannot be what it must be; the text says why."""


def die_with_parent(parent_pid: int) -> None:
    """Ask for SIGKILL when the parent ends. Raises ProcessError where it has ended already."""
    _set_death_signal()
    # The parent may have gone between fork and here; then nobody would ever send that signal.
    if os.getppid() != parent_pid:
        raise ProcessError(f"the daemon {parent_pid} is gone")


def _set_death_signal() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise ProcessError(f"prctl(PR_SET_PDEATHSIG) failed: {os.strerror(ctypes.get_errno())}")


def ignore_terminal_signals() -> None:
    """^C and SIGTERM are the daemon's to interpret; it orders what follows."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def be_ordinary() -> None:
    """Leave a real-time class that a daemon was started in: torch's threads would keep everybody else out."""
    if os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK in (os.SCHED_FIFO, os.SCHED_RR):
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def lock_run(run_dir: Path, each: Callable[[], None]) -> int:
    """Take `<run>/trainer.lock` and write the pid into it; the descriptor. `each` is called while it waits.

    Raises ProcessError where another trainer holds it for a minute.
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
    """In every forked child: die with the trainer, and close its channel and lock at once.

    A DataLoader worker would otherwise hold both for up to five seconds after the trainer is gone.
    """

    def in_child() -> None:
        _set_death_signal()
        # Inherited as ignored; a pool that ends its workers with it would wait for them for ever.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        for descriptor in descriptors:
            try:
                os.close(descriptor)
            except OSError:
                # Closed before the fork: then the child never had it.
                continue

    os.register_at_fork(after_in_child=in_child)
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)


def offer_as_victim() -> None:
    """Raise this process's out-of-memory score; a refusal changes nothing else."""
    try:
        with open("/proc/self/oom_score_adj", "r+", encoding="ascii") as file:  # noqa: PTH123 - a file of the kernel's
            if int(file.read()) < _OOM_SCORE:
                file.seek(0)
                file.write(str(_OOM_SCORE))
    except OSError:
        return


def dump_stacks_on_request(run_dir: Path) -> None:
    """On SIGUSR2 write every thread's stack into `<run>/logs/trainer.stacks`, also from inside a hung C call."""
    run_files.make_folder(run_dir, "logs")
    descriptor = run_files.open_file(run_dir, "logs/trainer.stacks", os.O_WRONLY | os.O_CREAT)
    os.ftruncate(descriptor, 0)
    # Kept open for the life of the process: the handler may not open anything.
    file = os.fdopen(descriptor, "w", encoding="utf-8")
    faulthandler.register(signal.SIGUSR2, file=file, all_threads=True)
    _kept_open.append(file)


_kept_open: list[object] = []


def leave(code: int) -> NoReturn:
    """End the process: exit hooks run and what was printed goes out, but torch's modules are not taken apart.

    That would take most of a second, in which a stopped daemon, or the next trainer, waits for this one.
    """
    atexit._run_exitfuncs()  # noqa: SLF001 - what the interpreter itself would call
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)
