"""One operating-system process of ours: started in a session of its own, watched by a descriptor, ended as a group.

Promises: signals go to the process that was started or to nobody (a pidfd, and a group number that stays taken until it
is reaped); nothing here waits. It must not know: what the process does.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from typing import Final

from tolariad.supervisor.death import Exit
from tolariad.supervisor.procfs import process_stat

# Words meant for the daemon alone: a child that answered its service manager or took its sockets would speak for it.
_NOT_FOR_CHILDREN: Final = frozenset(
    {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_PIDFDID"}
)


# From this size on the C library copies past the caches, which saves the memory one of three journeys. Its own limit, three
# quarters of all caches, is beyond any single tensor's size on a large machine.
_TUNABLE: Final = "glibc.cpu.x86_non_temporal_threshold"
_COPIED_PAST_CACHES: Final = 0x100000


def child_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What a trainer inherits. The order of its sets of strings is the same in every trainer of a run."""
    inherited = {name: value for name, value in environ.items() if name not in _NOT_FOR_CHILDREN}
    hash_seed = inherited.get("PYTHONHASHSEED", "")
    return inherited | {
        "PYTHONUNBUFFERED": "1",
        "PYTHONHASHSEED": hash_seed if hash_seed.isdecimal() else "0",
        "GLIBC_TUNABLES": _tunables(inherited.get("GLIBC_TUNABLES", "")),
    }


def _tunables(given: str) -> str:
    """Those of the C library; one that knows none of them passes over this, and whoever set it is not overruled."""
    if _TUNABLE in given:
        return given
    return ":".join(filter(None, (given, f"{_TUNABLE}={_COPIED_PAST_CACHES:#x}")))


class ChildProcess:
    """A child, from its start to its reaping."""

    def __init__(self, popen: subprocess.Popen[bytes], pidfd: int, start_ticks: int) -> None:
        self._popen = popen
        self.pidfd = pidfd
        self.pid = popen.pid
        self.start_ticks = start_ticks

    @classmethod
    def spawn(
        cls, command: Sequence[str], environment: Mapping[str, str], output: int, passed: tuple[int, ...]
    ) -> ChildProcess:
        """Start `command` in a new session; stdout and stderr go to descriptor `output`. Raises OSError.

        Only from the main thread: a child's wish to die with its parent is tied to the thread that made it.
        """
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("a trainer is started from the main thread only: it would die with any other thread")
        popen = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=dict(environment),
            pass_fds=passed,
            start_new_session=True,
        )
        stat = process_stat(popen.pid)
        try:
            return cls(popen, os.pidfd_open(popen.pid), stat.start_ticks if stat else 0)
        except OSError:
            # No descriptor left to watch it by: then it must not be there.
            popen.kill()
            popen.wait()
            raise

    def send(self, number: signal.Signals) -> None:
        """Signal this one process; nothing happens where it has ended."""
        try:
            signal.pidfd_send_signal(self.pidfd, number)
        except ProcessLookupError:
            return

    def kill_group(self) -> None:
        """SIGKILL for the process and all it started in its group; before `reap` only, while the number is its own."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            return

    def reap(self) -> Exit | None:
        """How it ended, or None while it runs. What is left of its group is ended before the number is given up."""
        if os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return None
        self.kill_group()
        info = os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED)
        os.close(self.pidfd)
        if info is None:
            raise ChildProcessError(f"process {self.pid} was reaped by somebody else")
        by_signal = info.si_code != os.CLD_EXITED
        # Popen would otherwise look for the child again and warn that it still runs.
        self._popen.returncode = -info.si_status if by_signal else info.si_status
        if not by_signal:
            return Exit(code=info.si_status)
        return Exit(signal_number=info.si_status, dumped=info.si_code == os.CLD_DUMPED)
