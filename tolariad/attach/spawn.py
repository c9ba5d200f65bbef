"""The recorder's process of a program: started early, used for one run after the other, and ended with the program.

Promises: a start waits for nothing. A recorder has its own session, so ^C in a terminal does not reach it, and none of
the program's descriptors, not even its output. A forked child of the program has no recorder.
"""

from __future__ import annotations

import atexit
import os
import socket
import subprocess
import sys
from contextlib import suppress
from multiprocessing import parent_process, spawn
from pathlib import Path
from typing import Final

from tolariad.attach.link import Link
from tolariad.core.calc.run.exits import EXIT_IO
from tolariad.refusal import StartRefused, require_linux
from tolariad.signals import kept_from_new_processes

_PACKAGE: Final = str(Path(__file__).parents[2])
# How long the end of a program waits for a recorder that has nothing to do.
_IDLE_END_S: Final = 1.0
_SAID_BYTES: Final = 4096


class RecorderProcess:
    """A recorder, with this program's end of the link to it."""

    def __init__(self) -> None:
        """Start it. Raises StartRefused if the system does not allow that."""
        require_linux()
        executable = os.fsdecode(spawn.get_executable() or sys.executable or "")
        if not executable:
            raise _refused("sys.executable is empty")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # What it says before it has a log: why it could not start.
        self._said = os.memfd_create("tolaria-said", os.MFD_CLOEXEC)
        before = os.environ.get("PYTHONPATH")
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (_PACKAGE, before)))}
        try:
            with kept_from_new_processes():
                self._process = subprocess.Popen(
                    [executable, "-P", "-m", "tolariad.attach", str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=self._said,
                    stderr=self._said,
                    pass_fds=(theirs.fileno(),),
                    env=environment,
                    start_new_session=True,
                )
        except OSError as error:
            ours.close()
            os.close(self._said)
            raise _refused(f"{executable} cannot be started: {error.strerror}") from error
        finally:
            theirs.close()
        self._executable = executable
        self.pid = self._process.pid
        self.link = Link(ours)

    @property
    def is_running(self) -> bool:
        """Return whether it has not ended."""
        return self._process.poll() is None

    def refusal(self) -> StartRefused:
        """Return why there is no recorder, if it has ended at its start."""
        said = os.pread(self._said, _SAID_BYTES, max(0, os.fstat(self._said).st_size - _SAID_BYTES))
        lines = said.decode("utf-8", "replace").strip().splitlines()
        return _refused(f"{self._executable} ended at once{f' ({lines[-1]})' if lines else ''}")

    def end(self, patience_s: float) -> None:
        """Close the link: it ends by itself. Kill it after `patience_s`."""
        self.link.close()
        with suppress(OSError):
            os.close(self._said)
        try:
            self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self._kill()
        except BaseException:  # ^C
            self._kill()
            raise

    def _kill(self) -> None:
        self._process.kill()
        self._process.wait()


def _refused(why: str) -> StartRefused:
    return StartRefused(
        EXIT_IO,
        f"the recorder, which is a process of its own, could not be started: {why}",
        "allow this program to start a process; if its sys.executable is no Python, name one by "
        "multiprocessing.set_executable(path)",
    )


# At most one: a program has one run at a time.
_idle: list[RecorderProcess] = []


def prepare() -> None:
    """Start a recorder, if none is idle: its imports take half a second. An error is raised by `take` instead."""
    # Not in a spawned worker of the program, which imports its modules again.
    if not _idle and parent_process() is None:
        with suppress(StartRefused):
            _idle.append(RecorderProcess())


def take() -> RecorderProcess:
    """Return a recorder for a run. Raises StartRefused."""
    while _idle:
        idle = _idle.pop()
        if idle.is_running:
            return idle
        idle.end(_IDLE_END_S)
    return RecorderProcess()


def give_back(recorder: RecorderProcess) -> None:
    """Keep a recorder whose run is over for the next one."""
    if _idle:
        recorder.end(_IDLE_END_S)
    else:
        _idle.append(recorder)


def end_idle() -> None:
    """End the recorder that has nothing to do."""
    while _idle:
        _idle.pop().end(_IDLE_END_S)


atexit.register(end_idle)
# Its link is closed there (attach/link.py); the process is the parent's child.
os.register_at_fork(after_in_child=_idle.clear)
