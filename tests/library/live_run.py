"""A library run that trains until it is stopped, and the `tolaria` commands that reach it, each in its own process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from contextlib import contextmanager
from pathlib import Path

from tests.campaign.forks import shared_template
from tests.library.small import Hooks, loaders, made, network
from tests.waiting import wait_for
from tolariad.control.client import Client, NotReachable
from tolariad.control.where import socket_of

LONG = 100_000
# Of a test that waits for something that takes a fraction of a second.
PATIENCE_S = 120.0
_CALL = "from tolariad.cli.tolaria import main; main()"


def started(*arguments: object, **options) -> subprocess.Popen[str]:
    """A `tolaria` command under way."""
    command = [sys.executable, "-c", _CALL, *(str(one) for one in arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def tolaria(*arguments: object, code: int = 0) -> str:
    """Run a `tolaria` command in a fork and return what it wrote; its exit code must be `code`."""
    ended = shared_template().run(arguments, folder=Path.cwd(), program="tolaria", timeout=PATIENCE_S)
    said = ended.stdout + ended.stderr
    assert ended.returncode == code, said
    return said


class Slow(Hooks):
    """A task whose steps take a moment, and which calls `hook(step)` after each."""

    def __init__(self, hook=None, step_s: float = 0.002):
        super().__init__(hook)
        self._step_s = step_s

    def on_step_end(self, model, step):
        time.sleep(self._step_s)
        super().on_step_end(model, step)


def train(run_dir: Path, hook=None, *, run=None, epochs: int = LONG, model=None, step_s=0.002, workers=0, **config):
    """Call `Tolaria.train` in this thread, of `run` or of a new run."""
    run = run or made(run_dir, accept_config=True, **config)
    return run.train(model or network(), *loaders(workers=workers), epochs, task=Slow(hook, step_s))


def asked(run_dir: Path) -> dict:
    """The status of a live run, without the price of a command."""
    with Client(socket_of(run_dir)) as client:
        return client.call("Status")["status"]


def is_reached(run_dir: Path) -> bool:
    """Whether the run has the file of a socket. A killed run leaves it, and a run serves it a moment later."""
    return (run_dir / "control.sock").exists()


def is_served(run_dir: Path) -> bool:
    """Whether the run accepts a connection."""
    try:
        with Client(socket_of(run_dir)):
            return True
    except NotReachable:
        return False


@contextmanager
def live(run_dir: Path, hook=None, **options):
    """A run that trains in a thread of this process. Yield a list that gets the result; stop the run at the end."""
    results: list = []
    run = made(run_dir, accept_config=True)

    def work():
        results.append(train(run_dir, hook, run=run, **options))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        wait_for(lambda: is_served(run_dir))
        yield results
    finally:
        # Whatever failed: a run that goes on would disturb every later test of this process.
        wait_for(lambda: not thread.is_alive() or run.stop() or not thread.is_alive())
        thread.join(PATIENCE_S)
    assert results, "the run failed"


@contextmanager
def in_a_process(run_dir: Path, hook=None, **options):
    """A run that trains in a forked process. Yield its pid; it is killed at the end."""
    pid = os.fork()
    if pid == 0:
        try:
            train(run_dir, hook, **options)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    try:
        wait_for(lambda: is_served(run_dir))
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
