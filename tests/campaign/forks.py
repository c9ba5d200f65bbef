"""A template process with torch imported; daemons and trainers start as its forks, which saves two seconds each.

The template also holds the modules of this project. Importing them reads no environment, clock or file, except the
failpoints, which a fork reads anew (test_forks.py). A fork is given its arguments, environment, working folder and
descriptors as `exec` would have given them, so nothing it does depends on the template.

A trainer must be its daemon's own child. So each daemon, before its first line, forks `shells`; a shell becomes a
trainer when the daemon starts one. When they are used up, the daemon starts trainers as usual.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple, NoReturn

ROOT = Path(__file__).parents[2]
# The modules of a daemon and of a trainer. What only some runs need is imported by the fork.
OURS = (
    "tolariad.cli.tolariad",
    "tolariad.daemon",
    "tolariad.trainer.orders",
    "tolariad.trainer.process.lifecycle",
)
# The programs that a shell may become; others, such as a strategy's, are started as usual.
TRAINERS = ("tolariad.trainer", "tests.daemon.fake_trainer")
PRELOADED = (
    *("torch", "torch.utils.data", "numpy", "safetensors", "blake3", "xxhash", "google_crc32c", "zstandard"),
    *(
        "asyncio",
        "uvloop",
        "msgspec",
        "structlog",
        "click",
        "yaml",
        "argparse",
        "socket",
        "concurrent.futures",
    ),
    *OURS,
)
_MESSAGE_BYTES = 1 << 17
_ABOVE = 512
_START_S = 120.0


# -- for whoever starts daemons ----------------------------------------------------------------------------------------


class Template:
    """The template process. Use it in a `with` statement; `start` may be called from any thread."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="template")
        self._path = Path(self._folder.name) / "socket"
        # Strings hash in a trainer as the supervisor wishes; that is settled where an interpreter begins.
        environment = {**os.environ, "PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(self._path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )

    def __enter__(self) -> Template:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"
        return self

    def __exit__(self, *_exc: object) -> None:
        # A byte, not only the end of the pipe: workers of data loaders are forks of the tests, and hold it too.
        self._process.communicate(b"\n", timeout=_START_S)
        self._folder.cleanup()

    def start(
        self,
        arguments: Sequence[str],
        *,
        environment: Mapping[str, str],
        folder: Path,
        log: int,
        shells: int,
        restart_s: float | None = None,
        program: str = "tolariad",
        errors: int | None = None,
    ) -> Forked:
        """`tolariad ARGUMENTS` in `folder`, its output to descriptor `log`, with `shells` to start trainers from.

        `restart_s`: it waits no longer before it starts the next one, whatever the number of deaths. `program`: a
        Python file, or the module of another daemon, that is run instead of tolariad. `errors`: the descriptor for its
        errors, else they go to `log` too.
        """
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.settimeout(_START_S)
        connection.connect(str(self._path))
        order = {
            "arguments": arguments,
            "environment": dict(environment),
            "folder": str(folder),
            "shells": shells,
            "restart_s": restart_s,
            "program": program,
        }
        socket.send_fds(connection, [json.dumps(order).encode()], [log, log if errors is None else errors])
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
        """Run `tolariad ARGUMENTS`, or another program, to its end in `folder`. Raises TimeoutExpired."""
        environment = {**os.environ, "TOLARIA_FAILPOINT": failpoint}
        shells = 0 if program.endswith(".py") else 1 + failpoint.count("@")
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

    def poll(self) -> int | None:
        """Return its exit code, negative for a signal; None while it runs."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """Return its exit code. Raises TimeoutExpired."""
        if self._code is None:
            self._connection.settimeout(timeout)
            try:
                self._code = os.waitstatus_to_exitcode(int(self._connection.recv(_MESSAGE_BYTES)))
            except (BlockingIOError, TimeoutError):
                raise subprocess.TimeoutExpired("tolariad", timeout or 0) from None
            self._connection.close()
            os.close(self._pidfd)
        return self._code

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def kill(self) -> None:
        """Send SIGKILL, unless it has ended."""
        self.send_signal(signal.SIGKILL)


_shared: list[Template] = []


def shared_template() -> Template:
    """Return the template of this process. It is started by the first call."""
    if not _shared:
        _shared.append(Template().__enter__())
    return _shared[0]


def end_shared_template() -> None:
    """End it, if it was started."""
    while _shared:
        _shared.pop().__exit__()


# -- the template ------------------------------------------------------------------------------------------------------


def serve(path: str) -> None:
    """Fork a daemon for each connection and report how it ended, until standard input has a byte or ends."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(path)
    listener.listen(64)
    for name in PRELOADED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    print("ready", flush=True)
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    selector.register(sys.stdin, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is sys.stdin:
                return
            if key.fileobj is listener:
                connection, pid, pidfd = _fork_daemon(listener)
                selector.register(pidfd, selectors.EVENT_READ, (connection, pid))
            else:
                selector.unregister(key.fileobj)
                _tell_end(key.fd, *key.data)


def _fork_daemon(listener: socket.socket) -> tuple[socket.socket, int, int]:
    connection, _ = listener.accept()
    message, (log, errors), _, _ = socket.recv_fds(connection, _MESSAGE_BYTES, 2)
    order = json.loads(message)
    pid = os.fork()
    if pid == 0:
        _become({1: log, 2: errors}, order["environment"], order["folder"], lambda: _main(order))
    os.close(log)
    os.close(errors)
    pidfd = os.pidfd_open(pid)
    socket.send_fds(connection, [str(pid).encode()], [pidfd])
    return connection, pid, pidfd


def _tell_end(pidfd: int, connection: socket.socket, pid: int) -> None:
    _, status = os.waitpid(pid, 0)
    os.close(pidfd)
    try:
        connection.send(str(status).encode())
    except OSError:
        return  # whoever asked for it is gone
    finally:
        connection.close()


def _become(
    descriptors: Mapping[int, int], environment: Mapping[str, str], folder: str, main: Callable[[], None]
) -> NoReturn:
    """Give this fork these descriptors and no others, and run `main` to its end."""
    code = 1
    try:
        _arrange(descriptors)
        os.environ.clear()
        os.environ.update(environment)
        _arm_failpoints()
        os.chdir(folder)
        sys.path[0] = folder
        sys.stdout.reconfigure(write_through="PYTHONUNBUFFERED" in environment)
        code = _code_of(main)
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _arm_failpoints() -> None:
    """Read the variable again, as the import of the module did in the template."""
    from tolariad import failpoints

    failpoints._armed = failpoints._parse(os.environ.get(failpoints.VARIABLE, ""))


def _arrange(descriptors: Mapping[int, int]) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    aside = {at: fcntl.fcntl(given, fcntl.F_DUPFD, _ABOVE) for at, given in ({0: null} | dict(descriptors)).items()}
    os.closerange(3, _ABOVE)
    for at, given in aside.items():
        os.dup2(given, at, inheritable=True)
    os.closerange(_ABOVE, max(aside.values()) + 1)


def _code_of(main: Callable[[], None]) -> int:
    """Return the exit code that the interpreter would use."""
    try:
        main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def _main(order: dict) -> None:
    """Become the program of the order."""
    program = order["program"]
    if not program.endswith(".py"):
        _daemon(order)
        return
    from tolariad.trainer.process import light_start

    light_start.install()
    sys.argv = [program, *order["arguments"]]
    runpy.run_path(program, run_name="__main__")


def _daemon(order: dict) -> None:
    """Fork the shells first, while this process is like the template; then become `tolariad`."""
    idle = [Shell() for _ in range(order["shells"])]

    def popen(command: Sequence[str], **how: object) -> Shell | subprocess.Popen:
        if not idle or command[2] not in TRAINERS:
            return subprocess.Popen(command, **how)
        shell = idle.pop()
        shell.order(command, **how)
        return shell

    from tolariad.cli.tolariad import main
    from tolariad.core.trainer import slice as trainer
    from tolariad.supervisor import process

    if order["restart_s"] is not None:
        trainer.BACKOFF_S_MAX = order["restart_s"]
    process.subprocess = SimpleNamespace(Popen=popen, DEVNULL=subprocess.DEVNULL)
    sys.argv = [order["program"], *order["arguments"]]
    if order["program"] == "tolariad":
        main()
    else:
        os.setsid()
        runpy.run_module(order["program"], run_name="__main__", alter_sys=True)


class Shell:
    """A child of the daemon that waits to become a trainer, with the part of `subprocess.Popen` that the supervisor
    uses.
    """

    def __init__(self) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.returncode: int | None = None
        daemon = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            _die_with_parent(signal.SIGKILL)
            if os.getppid() == daemon:
                _await_order(theirs)
            os._exit(0)
        theirs.close()

    def order(
        self, command: Sequence[str], *, stdout: int, env: Mapping[str, str], pass_fds: tuple[int, ...], **_same: object
    ) -> None:
        """Become `command`, which is `python -m MODULE ARGUMENTS`."""
        assert self._channel.recv(1), "the shell is gone"
        message = {"command": command, "environment": dict(env), "descriptors": pass_fds, "folder": str(Path.cwd())}
        socket.send_fds(self._channel, [json.dumps(message).encode()], [stdout, *pass_fds])

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> None:
        os.waitpid(self.pid, 0)


def _die_with_parent(number: int) -> None:
    ctypes.CDLL(None).prctl(1, number, 0, 0, 0)


def _await_order(channel: socket.socket) -> None:
    """Start it in a new session, so that its whole group can be killed from the start."""
    os.setsid()
    channel.send(b"1")
    message, (output, *passed), _, _ = socket.recv_fds(channel, _MESSAGE_BYTES, 8)
    order = json.loads(message)
    _, flag, module, *arguments = order["command"]
    assert flag == "-m"

    def run() -> None:
        # A trainer decides that by itself, as one that was executed.
        _die_with_parent(0)
        sys.argv = [module, *arguments]
        runpy.run_module(module, run_name="__main__", alter_sys=True)

    descriptors = {1: output, 2: output} | dict(zip(order["descriptors"], passed, strict=True))
    _become(descriptors, order["environment"], order["folder"], run)


if __name__ == "__main__":
    sys.path[0] = str(ROOT)
    serve(sys.argv[1])
