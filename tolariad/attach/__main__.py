"""The recorder's process of a program: it opens one run after the other, as the program asks, and ends with it.

`python -m tolariad.attach FD`. FD is its end of the link (spawn.py). Promises: it never imports torch. It outlives its
program only until the program's end is recorded.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import logging
import os
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn

import msgspec

import tolariad
from tolariad import run_files
from tolariad.attach import words
from tolariad.attach.link import Link, LinkLost
from tolariad.core import messages as m
from tolariad.core.calc.run.exits import EXIT_CONFIG, EXIT_IO, EXIT_TRY_AGAIN
from tolariad.core.calc.settings.model import Settings
from tolariad.core.state.run_state import RunState, capture
from tolariad.daemon.live import Host, log_fields
from tolariad.daemon.opening import OpenRun, earlier_threads, open_run
from tolariad.daemon.program import ProgramPolicy
from tolariad.daemon.request import RunRequest, StartRefused
from tolariad.daemon.running import loop_factory
from tolariad.signals import leave_to_the_daemon
from tolariad.supervisor.attached import Program
from tolariad.supervisor.notify import Notifier
from tolariad.telemetry.logs import DaemonLog

_log: Final = logging.getLogger(__name__)
# Both take a tenth of a second at their first use. A program that waits for its first run does not notice it here.
_SETTINGS: Final = msgspec.json.Decoder(Settings)
_LOOP: Final = loop_factory()
# The recorder of a program that was just killed needs a moment to record that.
_LOCK_WAIT_S: Final = 5.0
_LOCK_LOOK_S: Final = 0.02
# Of a program that is a service: its service manager is none of the recorder's.
_NOT_OURS: Final = ("NOTIFY_SOCKET", "RUNTIME_DIRECTORY", "LISTEN_PID", "LISTEN_FDS", "WATCHDOG_USEC", "WATCHDOG_PID")


def main() -> NoReturn:
    """Serve the program until its link ends."""
    # What a terminal or a scheduler sends to all processes is for the program, which passes it on.
    leave_to_the_daemon()
    faulthandler.enable()
    link = Link(socket.socket(fileno=int(sys.argv[1])))
    with suppress(LinkLost):
        while True:
            word, _ = link.receive()
            # The last run's Ended may come after its Over.
            if isinstance(word, words.Hello):
                _serve(link, word)
    # The program has ended, or wants no recorder. There is nothing left that an orderly teardown would save.
    os._exit(0)


def _serve(link: Link, hello: words.Hello) -> None:
    """Serve one run. Raises LinkLost if the program is gone before it."""
    try:
        run, request = _open(hello)
    except StartRefused as refused:
        _tell(link, words.Refused(code=refused.code, why=refused.why, hint=refused.hint))
        return
    log_file = -1
    try:
        opened = words.Opened(
            run_id=run.run_id.hex(),
            config=run.resolved.text,
            threads=earlier_threads(run),
            state=capture(run.state),
        )
        _tell(link, opened)
        word, _ = link.receive()
        if not isinstance(word, words.Begin):
            raise LinkLost(f"{type(word).__name__} came instead of Begin")
        log_file = _own_log(run.run_dir)
    except BaseException:
        # Nothing is recorded, and the program may not be served by another recorder before this.
        run.journal.close()
        raise
    code, why, state = _live(link, run, request, word, log_file)
    os.close(log_file)
    _leave_place()
    _tell(link, words.Over(code=code, why=why, state=capture(state)))
    # The objects of a run are frozen while it lives (Host); the next one begins like the first.
    gc.unfreeze()


def _tell(link: Link, word: words.Word) -> None:
    try:
        link.send(word)
    except OSError as error:
        raise LinkLost(str(error)) from error


def _open(hello: words.Hello) -> tuple[OpenRun, RunRequest]:
    """Open the run as this program wants it. Raises StartRefused."""
    if hello.version != tolariad.__version__:
        why = f"the program has imported tolariad {hello.version}, and the files are of {tolariad.__version__}"
        raise StartRefused(EXIT_CONFIG, why, "start the program again")
    os.environ.clear()
    os.environ.update({name: value for name, value in hello.environment.items() if name not in _NOT_OURS})
    with suppress(OSError):  # relative names are then those of the folder in which it started
        os.chdir(hello.cwd)
    request = RunRequest(
        run_dir=Path(hello.run_dir),
        config=Path(hello.config) if hello.config is not None else None,
        settings=_SETTINGS.decode(hello.settings),
        accept_config=hello.accept_config,
        accept_data=hello.accept_data,
        accept_code=hello.accept_code,
    )
    give_up = time.monotonic() + _LOCK_WAIT_S
    while True:
        try:
            # A call of `train` is the wish to go on: a failed run needs no other word.
            return open_run(request, m.StartMode.RETRY, Notifier({})), request
        except StartRefused as refused:
            if refused.code != EXIT_TRY_AGAIN or time.monotonic() > give_up:
                raise
            time.sleep(_LOCK_LOOK_S)


def _own_log(run_dir: Path) -> int:
    """Open the recorder's log of this run. What libraries and crashes print goes there too."""
    file = run_files.open_file(run_dir, "logs/recorder.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for output in (1, 2):
        os.dup2(file, output, inheritable=True)
    return file


def _leave_place() -> None:
    """Keep no file system busy between two runs."""
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDWR)
    for output in (1, 2):
        os.dup2(null, output, inheritable=True)
    os.close(null)


def _live(
    link: Link, run: OpenRun, request: RunRequest, begin: words.Begin, log_file: int
) -> tuple[int, str, RunState]:
    """Serve the run until its end. Return the exit code, the reason, and the state."""
    log = DaemonLog(run.resolved.settings.logging.level, "json", log_file)
    log.bind(lambda: log_fields(run.run_dir, run.state))
    hosts: list[Host] = []

    async def live() -> int:
        loop = asyncio.get_running_loop()

        def call(function: Callable[[], None]) -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(function)

        policy = ProgramPolicy(run, Program(link, link.peer_pid()), begin, call)
        hosts.append(Host(request, run, log, policy, notifier=Notifier({})))
        return await hosts[0].live()

    try:
        with asyncio.Runner(loop_factory=_LOOP) as runner:
            code = runner.run(live())
        return code, hosts[0].why, hosts[0].state
    except StartRefused as refused:
        run.journal.close()
        return refused.code, refused.why, hosts[0].state if hosts else run.state
    except Exception as error:  # noqa: BLE001 - the program gets it
        _log.exception("The recorder failed")
        why = f"the recorder failed: {error!r}; this is a defect, please report it with {run.run_dir}/logs/recorder.log"
        return EXIT_IO, why, hosts[0].state if hosts else run.state
    finally:
        log.close()
        leave_to_the_daemon()


if __name__ == "__main__":
    main()
