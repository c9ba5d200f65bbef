"""A real daemon process with a fake trainer, and the content of its journal."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.campaign.forks import shared_template
from tests.recorded import events_of, of
from tests.waiting import PATIENCE_S

# How many trainers and analyses of one daemon are forks, unless a test says it; further ones are started as usual.
SHELLS = 2
FAKE = (sys.executable, "-m", "tests.daemon.fake_trainer")
# Small segments: making one of 100 MB would be most of a test's time.
SETS = ["journal.segment_bytes=1000000"]
TIMEOUT_S = PATIENCE_S


class CallFailed(Exception):
    """The daemon answered with an error."""


class DaemonProcess:
    """One start of a daemon."""

    def __init__(
        self, run_dir: Path, *, environ: dict[str, str] | None = None, wrapper: tuple[str, ...] = (), **asked: object
    ) -> None:
        self.run_dir = run_dir
        module = str(asked.pop("module", "tests.daemon.start_daemon"))
        self.shells = asked.pop("shells", SHELLS)
        request = {"run_dir": str(run_dir), "sets": SETS, "trainer_command": [*FAKE, "--run", str(run_dir)]}
        if not {"config", "task"} & asked.keys() and not (run_dir / "config.resolved.json").exists():
            request |= {"task": "digits", "epochs": 3}
        argument = json.dumps({key: value for key, value in (request | asked).items() if value is not None})
        clean = {name: value for name, value in os.environ.items() if name not in ("XDG_RUNTIME_DIR", "NOTIFY_SOCKET")}
        clean |= {"XDG_RUNTIME_DIR": str(run_dir.parent), **(environ or {})}
        self.process = self.begin(module, argument, clean, wrapper)
        self.stderr = ""

    def begin(
        self, module: str, argument: str, environ: dict[str, str], wrapper: tuple[str, ...]
    ) -> subprocess.Popen[str] | ForkedProcess:
        """Start the process."""
        command = [*wrapper, sys.executable, "-m", module, argument]
        return subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True, start_new_session=True)

    @property
    def pid(self) -> int:
        return self.process.pid

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        """Return the exit code."""
        try:
            _, self.stderr = self.process.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            _, self.stderr = self.process.communicate()
            raise AssertionError(f"the daemon does not end:\n{self.stderr}") from None
        return self.process.returncode

    def kill(self) -> None:
        """Kill the daemon, as a crash would."""
        self.process.kill()
        _, self.stderr = self.process.communicate()

    def call(self, method: str, **parameters: object) -> dict:
        """Make one control call over the socket."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(TIMEOUT_S)
            sock.connect(str(self.run_dir / "control.sock"))
            request = {"method": f"io.esper.tolaria.{method}", "parameters": parameters}
            sock.sendall(json.dumps(request).encode() + b"\0")
            answer = b""
            while not answer.endswith(b"\0"):
                piece = sock.recv(65536)
                if not piece:
                    raise CallFailed("the daemon closed the connection")
                answer += piece
        reply = json.loads(answer[:-1])
        if "error" in reply:
            raise CallFailed(f"{reply['error']}: {reply.get('parameters')}")
        return reply["parameters"]

    def status(self) -> dict:
        """Return the daemon's status of the run."""
        reply = self.call("Status")
        return reply.get("status", reply)

    def until(self, condition: Callable[[dict], object], what: str = "it") -> dict:
        """Ask for the status until `condition` holds."""
        deadline = time.monotonic() + TIMEOUT_S
        last: object = None
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                last = status = self.status()
            except (OSError, CallFailed) as error:
                last = error
            else:
                if condition(status):
                    return status
            time.sleep(0.02)
        self.kill()
        raise AssertionError(f"{what} did not come about; last: {last}\n{self.stderr}")


class ForkedDaemon(DaemonProcess):
    """A daemon whose start takes less time: it and its first trainers are forks.

    One with a `wrapper`, or with another path of imports, is started as usual.
    """

    def begin(
        self, module: str, argument: str, environ: dict[str, str], wrapper: tuple[str, ...]
    ) -> subprocess.Popen[str] | ForkedProcess:
        if wrapper or environ.get("PYTHONPATH") != os.environ.get("PYTHONPATH"):
            return super().begin(module, argument, environ, wrapper)
        return ForkedProcess(module, argument, environ, self.shells)


class ForkedProcess:
    """A daemon that is forked from the template, with the part of `subprocess.Popen` that tests use.

    Its errors go into a pipe that nobody reads before `communicate`, as with `subprocess.PIPE`.
    """

    def __init__(self, module: str, argument: str, environ: dict[str, str], shells: int) -> None:
        self._errors, theirs = os.pipe()
        try:
            self._forked = shared_template().start(
                [argument], environment=environ, folder=Path.cwd(), log=1, errors=theirs, shells=shells, program=module
            )
        finally:
            os.close(theirs)
        self.pid = self._forked.pid
        self.poll, self.wait = self._forked.poll, self._forked.wait
        self.send_signal, self.kill = self._forked.send_signal, self._forked.kill
        self._pieces: list[bytes] = []

    @property
    def returncode(self) -> int | None:
        return self._forked.returncode

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def communicate(self, timeout: float = TIMEOUT_S) -> tuple[None, str]:
        """Return what it wrote, when it has ended. Raises TimeoutExpired."""
        deadline = time.monotonic() + timeout
        while self._errors >= 0:
            if not select.select([self._errors], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise subprocess.TimeoutExpired("daemon", timeout)
            self._pieces.append(os.read(self._errors, 1 << 16))
            if not self._pieces[-1]:
                os.close(self._errors)
                self._errors = -1
        self.wait(max(0.1, deadline - time.monotonic()))
        return None, b"".join(self._pieces).decode()


def of_type(run_dir: Path, kind: type) -> list:
    """Return the events of one type."""
    return of(events_of(run_dir), kind)


def is_gone(pid: int) -> bool:
    """Return whether a process has ended; a zombie has."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state in "ZX"
