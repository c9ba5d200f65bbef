"""How a process ended that is no child: told by what the system keeps of it, or not at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.waiting import wait_for
from tolariad.supervisor.exit_of import exit_of
from tolariad.supervisor.process import Exit

ENDS = {
    "exit code": ("raise SystemExit(7)", Exit(code=7)),
    "signal": ("import os; os.kill(os.getpid(), 9)", Exit(signal_number=signal.SIGKILL)),
}


@pytest.mark.parametrize("is_reaped", [False, True])
@pytest.mark.parametrize("how", ENDS)
def test_the_end_of_a_process_is_read(how, is_reaped):
    """A zombie tells it; after that, since Linux 6.15, its pidfd does. One that runs has no end."""
    code, expected = ENDS[how]
    process = subprocess.Popen([sys.executable, "-c", f"input(); {code}"], stdin=subprocess.PIPE)
    pidfd = os.pidfd_open(process.pid)
    assert exit_of(pidfd, process.pid) is None
    process.stdin.write(b"\n")
    process.stdin.close()
    if is_reaped:
        process.wait()
        found = exit_of(pidfd, process.pid)
    else:
        found = wait_for(lambda: exit_of(pidfd, process.pid))

    if is_reaped and found is None:
        assert tuple(map(int, os.uname().release.split(".")[:2])) < (6, 15)
    else:
        assert found == expected
    process.wait()
    os.close(pidfd)
