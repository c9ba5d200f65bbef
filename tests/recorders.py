"""Recorders of programs as forks, which saves the half second of their imports.

They are forks of a process that serves the whole session (campaign/template.py) and is as small as a recorder. If a
test has put something in the place of something else, such as a strategy, that must be in the recorder too. Then it is
a fork of the test's process. That costs more than a small run does, because both processes copy what they change of the
memory that they share.

A recorder is started anew for each test: `end` ends the one that is idle. Tests of the start itself use the real one
(tests/attach).
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
from collections.abc import Callable, Iterator, Mapping
from operator import itemgetter
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, SimpleNamespace
from typing import Any, NoReturn

from tests.campaign import forks
from tolariad import failpoints
from tolariad.attach import spawn
from tolariad.attach.__main__ import main
from tolariad.daemon import program

# A recorder never imports the first two. It arms failpoints anew, by its environment. pytest itself replaces a function
# of `warnings`.
_NOT_A_RECORDERS = ("tolariad.trainer", "tolariad.library", "tolariad.failpoints", "warnings")
# What stood where when recorders were first started as forks.
_before: list[tuple[Mapping[str, Any], Callable[..., tuple], tuple]] = []
_FUNCTIONS = FunctionType | BuiltinFunctionType | type


def install(put=setattr) -> None:
    """Start recorders as forks from now on. `put`: such as `monkeypatch.setattr`."""
    put(spawn, "subprocess", _INSTEAD)
    # Else all trainers of the tests that run at this time would share one core, and their recorders another one.
    put(program, "cores_of_the_machine", frozenset)
    if not _before:
        _before.extend(_standing())


def end() -> None:
    """End the recorder that has nothing to do."""
    spawn.end_idle()


def _standing() -> Iterator[tuple[Mapping[str, Any], Callable[..., tuple], tuple]]:
    """Yield all that a test may replace in a recorder: everything of ours, and the functions of Python's library.

    That is each namespace, a function that takes these names from it, and what it takes now.
    """
    for name, module in list(sys.modules.items()):
        package = name.partition(".")[0]
        if name.startswith(_NOT_A_RECORDERS):
            continue
        ours = package in ("tolariad", "journal")
        if ours or package in sys.stdlib_module_names:
            spaces = [vars(module)]
            if ours:
                spaces += [vars(value) for value in vars(module).values() if isinstance(value, type)]
            for space in spaces:
                names = [key for key, value in space.items() if ours or isinstance(value, _FUNCTIONS)]
                if len(names) > 1:
                    take = itemgetter(*names)
                    yield space, take, take(space)


def _is_replaced() -> bool:
    try:
        # What is the same object is equal, and is not compared any further.
        return any(take(space) != before for space, take, before in _before)
    except KeyError:
        return True


def _start(
    command: list[str], *, stdout: int, pass_fds: tuple[int, ...], env: dict[str, str], **_: object
) -> forks.Forked | Forked:
    """Start a recorder, as `subprocess.Popen` is asked to by spawn.py."""
    if (template := forks.shared_recorders()) is None or _is_replaced():
        return Forked(command, stdout, pass_fds[0], env)
    (link,) = pass_fds
    given = {"environment": env, "folder": Path("/"), "log": stdout, "passed": {3: link}}
    return template.begin(["3"], program="tolariad.attach", **given)


class Forked:
    """A recorder that is a fork of this process, with the part of `subprocess.Popen` that spawn.py uses."""

    def __init__(self, command: list[str], output: int, link: int, environment: dict[str, str]) -> None:
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            _become(command, output, link, environment)

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


_INSTEAD = SimpleNamespace(Popen=_start, DEVNULL=subprocess.DEVNULL, TimeoutExpired=subprocess.TimeoutExpired)


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
