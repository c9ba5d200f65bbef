"""A real daemon process with a fake trainer, and the content of its journal."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from journal import JournalEntry, Reader
from tolariad.core.base import Event
from tolariad.core.vocabulary import decode_event

HERE = Path(__file__).parent
FAKE = (sys.executable, "-m", "tests.daemon.fake_trainer")
# Small segments: making one of 100 MB would be most of a test's time.
SETS = ["journal.segment_bytes=1000000"]
TIMEOUT_S = 60.0


class CallFailed(Exception):
    """The daemon answered with an error."""


class DaemonProcess:
    """One start of a daemon."""

    def __init__(
        self, run_dir: Path, *, environ: dict[str, str] | None = None, wrapper: tuple[str, ...] = (), **asked: object
    ) -> None:
        self.run_dir = run_dir
        module = asked.pop("module", "tests.daemon.start_daemon")
        request = {"run_dir": str(run_dir), "sets": SETS, "trainer_command": [*FAKE, "--run", str(run_dir)]}
        if not {"config", "task"} & asked.keys() and not (run_dir / "config.resolved.json").exists():
            request |= {"task": "digits", "epochs": 3}
        command = [
            *wrapper,
            sys.executable,
            "-m",
            str(module),
            json.dumps({key: value for key, value in (request | asked).items() if value is not None}),
        ]
        clean = {name: value for name, value in os.environ.items() if name not in ("XDG_RUNTIME_DIR", "NOTIFY_SOCKET")}
        clean |= {"XDG_RUNTIME_DIR": str(run_dir.parent), **(environ or {})}
        self.process = subprocess.Popen(
            command, env=clean, cwd=HERE.parent.parent, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        self.stderr = ""

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


def events(run_dir: Path) -> list[Event]:
    """Everything in the journal."""
    return [decode_event(one.event) for one in Reader(run_dir / "journal") if isinstance(one, JournalEntry)]


def of_type(run_dir: Path, kind: type) -> list:
    """Return the events of one type."""
    return [one for one in events(run_dir) if isinstance(one, kind)]


def is_gone(pid: int) -> bool:
    """Return whether a process has ended; a zombie has."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state in "ZX"


def within(seconds: float, condition: Callable[[], object]) -> bool:
    """Return whether `condition` holds within the time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return False
