"""The template process: with torch and this project imported, it forks daemons, trainers and other programs.

Importing the modules of this project reads no environment, clock or file, except the failpoints, which a fork reads
anew (test_template.py). A fork is given its arguments, environment, working folder and descriptors as `exec` would have
given them, so nothing it does depends on the template.

A trainer must be its daemon's own child. So each daemon, before its first line, forks `shells`; a shell becomes a
trainer when the daemon starts one. When they are used up, the daemon starts trainers as usual.
"""

from __future__ import annotations

import atexit
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
import threading
import traceback
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

ROOT = Path(__file__).parents[2]
# The modules of a daemon, of a trainer and of a user's program. What only some runs need is imported by the fork.
OURS = (
    "tolariad.cli.tolaria",
    "tolariad.cli.tolariad",
    "tolariad.cli.progress",
    "tolariad.daemon",
    "tolariad.library",
    "tolariad.attach.__main__",
    "tests.recorders",
    # Theirs are imported when they train (tolariad.trainer.process.lifecycle), because that takes long.
    "tolariad.trainer.build",
    "tolariad.trainer.loop",
    "tolariad.trainer.process.lifelines",
    # Of a rank that a daemon starts.
    "tolariad.library.grouped",
    "tolariad.trainer.ranks.leaf_steps",
    "tolariad.trainer.ranks.shared",
)
RESTART_S = 0.05
# The programs that a shell may become; others, such as a strategy's, are started as usual.
TRAINERS = ("tolariad.trainer", "tests.daemon.fake_trainer")
# A recorder has no torch: its forks are cheaper than those of a process that has.
OF_A_RECORDER = (*("blake3", "xxhash", "google_crc32c", "zstandard", "encodings.ascii"), "tolariad.attach.__main__")
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
        "encodings.ascii",
        "multiprocessing.popen_fork",
        "multiprocessing.queues",
        "multiprocessing.synchronize",
        "numpy.random",
    ),
    *OURS,
)
_MESSAGE_BYTES = 1 << 17
_ABOVE = 512


def serve(path: str) -> None:
    """Fork a daemon for each connection and report how it ended, until standard input ends: so does the session."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(path)
    listener.listen(64)
    place = Path(path)
    for name in OF_A_RECORDER if place.name == "recorders" else PRELOADED:
        importlib.import_module(name)
        if name == "torch":
            _start_light()
    _forget_finalizers()
    _prepare(place.parent)
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


def _start_light() -> None:
    """As every trainer does before it imports an optimizer."""
    from tolariad.trainer.torch_private import light_start

    light_start.install()


def _forget_finalizers() -> None:
    """Let no fork take torch's operators back when it ends: that is most of the time of a short one."""
    for one in weakref.finalize._registry:
        one.atexit = False


def _prepare(session: Path) -> None:
    """Let programs have recorders that are forks too, and keep what is looked up at the first reading of settings."""
    from tests import own_place, recorders
    from tolariad import config

    own_place.join(session)
    recorders.install()
    config.load({"tolaria": {}}, environ={})


def _fork_daemon(listener: socket.socket) -> tuple[socket.socket, int, int]:
    connection, _ = listener.accept()
    message, given, _, _ = socket.recv_fds(connection, _MESSAGE_BYTES, 8)
    order = json.loads(message)
    pid = os.fork()
    if pid == 0:
        descriptors = dict(zip((1, 2, *order["passed"]), given, strict=True))
        _become(descriptors, order["environment"], order["folder"], lambda: _main(order))
    for one in given:
        os.close(one)
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
        _draw_anew()
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

    failpoints.armed = failpoints._parse(os.environ.get(failpoints.VARIABLE, ""))


def _draw_anew() -> None:
    """Seed NumPy's generator from the system, as its import would have. Python's own does so at a fork."""
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()


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
    if program == "tolaria":
        from tolariad.cli.tolaria import main

        sys.argv = [program, *order["arguments"]]
        main()
        return
    if program == "tolariad.attach":
        _recorder(order)
        return
    if not program.endswith(".py"):
        _daemon(order)
        return
    sys.argv = [program, *order["arguments"]]
    runpy.run_path(program, run_name="__main__")


def _recorder(order: dict) -> None:
    from tolariad.attach.__main__ import main

    # After a run it would thaw the template's objects too, and each collection would then copy their pages.
    gc.unfreeze = lambda: None
    os.setsid()
    sys.argv = [order["program"], *order["arguments"]]
    main()


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
    from tolariad.core import state as st
    from tolariad.supervisor import process

    # Where the function reads it. Seconds between two trainers would be waited for in full, once for each kill.
    st.backoff_s.__globals__["BACKOFF_S_MAX"] = RESTART_S
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
