"""Start daemons and other programs as forks of a template (template.py), which saves two seconds each."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests import own_place

PROGRAM = Path(__file__).with_name("template.py")
_MESSAGE_BYTES = 1 << 17
_START_S = 120.0


class Template:
    """The template process, which serves all workers of a session. `start` may be called from any thread."""

    def __init__(self, path: Path, pid: int) -> None:
        self._path = path
        # The parent of everything that it starts.
        self.pid = pid

    def start(
        self,
        arguments: Sequence[str],
        *,
        environment: Mapping[str, str],
        folder: Path,
        log: int,
        shells: int,
        program: str = "tolariad",
        errors: int | None = None,
        passed: Mapping[int, int] | None = None,
    ) -> Forked:
        """`tolariad ARGUMENTS` in `folder`, its output to descriptor `log`, with `shells` to start trainers from.

        After the death of a trainer it starts the next one at once. `program`: a Python file, or a module in a session
        of its own, that is run instead of tolariad. `errors`: the descriptor for its errors, else they go to `log` too.
        `passed`: further descriptors, by the number that they have there.
        """
        own_place.guard(environment, folder)
        return self.begin(
            arguments,
            environment=environment,
            folder=folder,
            log=log,
            shells=shells,
            program=program,
            errors=errors,
            passed=passed,
        )

    def begin(
        self,
        arguments: Sequence[str],
        *,
        environment: Mapping[str, str],
        folder: Path,
        log: int,
        shells: int = 0,
        program: str,
        errors: int | None = None,
        passed: Mapping[int, int] | None = None,
    ) -> Forked:
        """Do the same for a program that was allowed to see what `environment` names."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.settimeout(_START_S)
        connection.connect(str(self._path))
        order = {
            "arguments": arguments,
            "environment": dict(environment),
            "folder": str(folder),
            "shells": shells,
            "program": program,
            "passed": list(passed or ()),
        }
        given = [log, log if errors is None else errors, *(passed or {}).values()]
        socket.send_fds(connection, [json.dumps(order).encode()], given)
        pid, descriptors, _, _ = socket.recv_fds(connection, _MESSAGE_BYTES, 1)
        return Forked(connection, int(pid), descriptors[0])

    def run(
        self,
        arguments: Sequence[str],
        *,
        folder: Path,
        failpoint: str = "",
        program: str = "tolariad",
        timeout: float = 300.0,
    ) -> Ended:
        """Run `tolariad ARGUMENTS`, `tolaria`, or a Python file, to its end in `folder`. Raises TimeoutExpired."""
        environment = {**os.environ, "TOLARIA_FAILPOINT": failpoint}
        shells = 1 + failpoint.count("@") if program == "tolariad" else 0
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            process = self.start(
                [str(one) for one in arguments],
                environment=environment,
                folder=folder,
                log=output.fileno(),
                shells=shells,
                program=program,
                errors=errors.fileno(),
            )
            try:
                code = process.wait(timeout)
            finally:
                process.kill()
            output.seek(0)
            errors.seek(0)
            return Ended(code, output.read().decode(), errors.read().decode())


class Ended(NamedTuple):
    """A program that has ended: its exit code, negative for a signal, and what it wrote."""

    returncode: int
    stdout: str
    stderr: str


class Forked:
    """A forked daemon, with the part of `subprocess.Popen` that the campaign uses."""

    def __init__(self, connection: socket.socket, pid: int, pidfd: int) -> None:
        self.pid = pid
        self._pidfd = pidfd
        self._connection = connection
        self._code: int | None = None
        self._reading = threading.Lock()

    @property
    def returncode(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        return self.poll()

    def poll(self) -> int | None:
        """Return its exit code, negative for a signal; None while it runs."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """Return its exit code. Raises TimeoutExpired."""
        # One thread reads; another one that asks meanwhile waits for it, as long as it may.
        if self._code is None and self._reading.acquire(timeout=-1 if timeout is None else timeout):
            try:
                self._read(timeout)
            finally:
                self._reading.release()
        if self._code is None:
            raise subprocess.TimeoutExpired("tolariad", timeout or 0)
        return self._code

    def _read(self, timeout: float | None) -> None:
        if self._code is not None:
            return
        self._connection.settimeout(timeout)
        with contextlib.suppress(BlockingIOError, TimeoutError):
            self._code = os.waitstatus_to_exitcode(int(self._connection.recv(_MESSAGE_BYTES)))
            self._connection.close()
            os.close(self._pidfd)

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            # It ends at this moment, and another thread has closed its descriptor.
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self._pidfd, number)

    def kill(self) -> None:
        """Send SIGKILL, unless it has ended."""
        self.send_signal(signal.SIGKILL)


@functools.cache
def shared_template() -> Template:
    """Return the template of this session. The first worker that asks for it starts it; it ends with the session."""
    shared_recorders()  # the programs of the template ask for it
    return _shared("template")


@functools.cache
def shared_recorders() -> Template | None:
    """Return the process whose forks are recorders; None in a program that no session of tests has started."""
    return _shared("recorders") if (own_place.session() / own_place.ALIVE).exists() else None


def _shared(kind: str) -> Template:
    session = own_place.session()
    path, number = session / kind, session / f"{kind}.pid"
    if not number.exists():
        with (session / f"{kind}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not number.exists():
                _start(path, session / own_place.ALIVE, number)
    return Template(path, int(number.read_text()))


def _start(path: Path, alive: Path, number: Path) -> None:
    # Strings hash in a trainer as the supervisor wishes; that is settled where an interpreter begins.
    environment = {**os.environ, "PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1"}
    reading, writing = os.pipe()
    with alive.open("rb") as session, os.fdopen(reading, "rb") as said:
        # No Popen: it warns if nobody waits for it, and the template outlives the worker that starts it.
        given = [(os.POSIX_SPAWN_DUP2, session.fileno(), 0), (os.POSIX_SPAWN_DUP2, writing, 1)]
        pid = os.posix_spawn(sys.executable, [sys.executable, PROGRAM, path], environment, file_actions=given)
        os.close(writing)
        assert said.readline() == b"ready\n"
    whole = number.with_suffix(".new")
    whole.write_text(str(pid))
    whole.rename(number)
