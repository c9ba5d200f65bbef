"""Recorders of programs as forks of the program, which saves the half second of their imports.

What a test has put in the place of something, such as a strategy, is then in the recorder too. A recorder is started
anew for each test: `end` ends the one that is idle. Tests of the start itself use the real one (tests/attach).
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

from tolariad import failpoints
from tolariad.attach import spawn
from tolariad.attach.__main__ import main
from tolariad.daemon import program


def install(put=setattr) -> None:
    """Start recorders as forks from now on. `put`: such as `monkeypatch.setattr`."""
    instead = SimpleNamespace(Popen=Forked, DEVNULL=subprocess.DEVNULL, TimeoutExpired=subprocess.TimeoutExpired)
    put(spawn, "subprocess", instead)
    # Else all trainers of the tests that run at this time would share one core, and their recorders another one.
    put(program, "cores_of_the_machine", frozenset)


def end() -> None:
    """End the recorder that has nothing to do."""
    spawn.end_idle()


class Forked:
    """A recorder, with the part of `subprocess.Popen` that spawn.py uses."""

    def __init__(self, command: list[str], *, stdout: int, pass_fds: tuple[int, ...], env: dict[str, str], **_: object):
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            _become(command, stdout, pass_fds[0], env)

    def poll(self) -> int | None:
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                pid, status = self.pid, 0
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        give_up = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if give_up is not None and time.monotonic() >= give_up:
                raise subprocess.TimeoutExpired("recorder", timeout)
            time.sleep(0.001)
        return code

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def _become(command: list[str], output: int, link: int, environment: dict[str, str]) -> NoReturn:
    """Be as if executed: with these descriptors alone, in a session of its own, with signals as they are by default."""
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for at, given in ((0, null), (1, output), (2, output)):
            os.dup2(given, at)
        # Numbers stay taken: an object of the parent's that is freed here would close what another one has got.
        for at in {int(one.name) for one in Path("/proc/self/fd").iterdir()} - {0, 1, 2, link, null}:
            with contextlib.suppress(OSError):
                os.dup2(null, at, inheritable=False)
        # A collection would look at all objects of the tests, and copy their pages: seconds, in each run.
        gc.freeze()
        gc.unfreeze = lambda: None
        for one in (signal.SIGCHLD, signal.SIGALRM):
            signal.signal(one, signal.SIG_DFL)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = [command[0], str(link)]
        sys.stdout = sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115 - pytest has put its own there
        if failpoints.VARIABLE in environment:
            failpoints.armed = failpoints._parse(environment[failpoints.VARIABLE])
        main()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)
