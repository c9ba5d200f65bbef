"""One child process: started in a group of its own, watched through a pidfd, killed with its group. And what ended it.

Promises: a signal reaches the started process, or no process. The pidfd names that process, and its group id cannot be
reused before it is reaped. Nothing here waits.
"""

from __future__ import annotations

import enum
import os
import re
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from tolariad.core import messages as m
from tolariad.core.calc.text.tracebacks import last_traceback
from tolariad.signals import kept_from_new_processes
from tolariad.supervisor.procfs import process_stat

# Variables for the daemon alone. A child must not answer the daemon's service manager or take its sockets.
_NOT_FOR_CHILDREN: Final = frozenset(
    {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_PIDFDID"}
)


_MEMORY_ERROR: Final = re.compile(r"^(?:\w+\.)*(?:MemoryError|OutOfMemoryError)\b", re.MULTILINE)
# From this size on the C library copies with non-temporal stores, which need two memory transfers instead of three. Its
# default, three quarters of all caches, is larger than any single tensor on a large machine.
_TUNABLE: Final = "glibc.cpu.x86_non_temporal_threshold"
_COPIED_PAST_CACHES: Final = 0x100000


class Exit(msgspec.Struct, frozen=True, kw_only=True):
    """How a process ended: with an exit code, or by a signal."""

    code: int | None = None
    signal_number: int | None = None

    @property
    def signal_name(self) -> str:
        """The signal's name, such as `SIGSEGV`; empty if no signal ended the process."""
        if self.signal_number is None:
            return ""
        try:
            return signal.Signals(self.signal_number).name
        except ValueError:
            return f"signal {self.signal_number}"


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """Evidence beside the exit.

    `oom_kills` is the number of out-of-memory kills while the trainer lived; None if it is unknown.
    """

    hung: bool = False
    killed_by_us: bool = False
    oom_kills: int | None = None
    output: str = ""


def death_reason(exit_: Exit, evidence: Evidence) -> m.DeathReason:
    """Return the class of this death."""
    if evidence.hung:
        return m.DeathReason.HANG
    if evidence.killed_by_us and exit_.signal_number == signal.SIGKILL:
        return m.DeathReason.KILLED
    if exit_.signal_number is not None:
        by_memory = exit_.signal_number == signal.SIGKILL and bool(evidence.oom_kills)
        return m.DeathReason.MEMORY if by_memory else m.DeathReason.SIGNAL
    printed = last_traceback(evidence.output)
    if exit_.code == 0 or not printed:
        return m.DeathReason.EXIT
    return m.DeathReason.MEMORY if _MEMORY_ERROR.search(printed) else m.DeathReason.EXCEPTION


def child_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return a trainer's environment. A fixed hash seed gives sets of strings the same order in every trainer."""
    inherited = {name: value for name, value in environ.items() if name not in _NOT_FOR_CHILDREN}
    hash_seed = inherited.get("PYTHONHASHSEED", "")
    return inherited | {
        "PYTHONUNBUFFERED": "1",
        "PYTHONHASHSEED": hash_seed if hash_seed.isdecimal() else "0",
        "GLIBC_TUNABLES": _tunables(inherited.get("GLIBC_TUNABLES", "")),
    }


def _tunables(given: str) -> str:
    """Add our tunable of the C library, unless the user has set it. Other C libraries ignore the variable."""
    if _TUNABLE in given:
        return given
    return ":".join(filter(None, (given, f"{_TUNABLE}={_COPIED_PAST_CACHES:#x}")))


class ParentThread(threading.Thread):
    """A thread that ends after every process that it started."""


class Session(enum.Enum):
    """The session of a child. The system shares a core between sessions first, then between their processes.

    See autogroup in sched(7). In a session of its own a child competes with the daemon's as an equal, whatever its
    priority is. In the daemon's session its priority counts.
    """

    OWN = "own"
    DAEMONS = "daemon's"


class ChildProcess:
    """A child process, from its start until it is reaped."""

    def __init__(self, popen: subprocess.Popen[bytes], pidfd: int, start_ticks: int) -> None:
        self._popen = popen
        self.pidfd = pidfd
        self.pid = popen.pid
        self.start_ticks = start_ticks

    @classmethod
    def spawn(
        cls,
        command: Sequence[str],
        environment: Mapping[str, str],
        output: int,
        passed: tuple[int, ...],
        session: Session = Session.OWN,
    ) -> ChildProcess:
        """Start `command` in a process group of its own; stdout and stderr go to descriptor `output`. Raises OSError.

        Only the main thread or a ParentThread may call this: a child with PR_SET_PDEATHSIG dies with the thread that
        created it. The child begins with the daemon's signals blocked (tolariad/signals.py).
        """
        thread = threading.current_thread()
        if thread is not threading.main_thread() and not isinstance(thread, ParentThread):
            raise RuntimeError("start a process from the main thread only: it dies with the thread that started it")
        with kept_from_new_processes():
            popen = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=dict(environment),
                pass_fds=passed,
                start_new_session=session is Session.OWN,
                process_group=0 if session is Session.DAEMONS else None,
            )
        stat = process_stat(popen.pid)
        try:
            return cls(popen, os.pidfd_open(popen.pid), stat.start_ticks if stat else 0)
        except OSError:
            # Without a pidfd it cannot be watched, so it must not run.
            popen.kill()
            popen.wait()
            raise

    def send(self, number: signal.Signals) -> None:
        """Send a signal to this process only. A no-op if it has ended."""
        try:
            signal.pidfd_send_signal(self.pidfd, number)
        except ProcessLookupError:
            return

    def kill_group(self) -> None:
        """Send SIGKILL to the process group. Call it before `reap` only: after that the id may belong to others."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            return

    def reap(self) -> Exit | None:
        """Return how it ended, or None while it runs. Kill the rest of its group before its id becomes free."""
        if os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return None
        self.kill_group()
        info = os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED)
        os.close(self.pidfd)
        if info is None:
            raise ChildProcessError(f"process {self.pid} was reaped by other code")
        by_signal = info.si_code != os.CLD_EXITED
        # Otherwise Popen would wait for the child again, and warn that it still runs.
        self._popen.returncode = -info.si_status if by_signal else info.si_status
        return Exit(signal_number=info.si_status) if by_signal else Exit(code=info.si_status)
