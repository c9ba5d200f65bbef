"""The service manager is told when the run is ready, its position, that the daemon lives, and how a stop advances."""

from __future__ import annotations

import re
import signal
import socket
import time

import pytest

from tests.daemon.harness import of_type
from tolariad.core import messages as m


class Manager:
    """A notify socket that keeps what it receives."""

    def __init__(self, path) -> None:
        self.path = path
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path))
        self.heard: list[str] = []

    def listen(self, wanted: str, seconds: float = 60.0) -> str:
        """Return the first line that starts with `wanted`, received before or within the time."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for line in self.heard:
                if line.startswith(wanted):
                    return line
            self.take(0.1)
        raise AssertionError(f"{wanted} was not heard: {self.heard}")

    def take(self, timeout_s: float) -> None:
        """Receive what comes within the time."""
        self.socket.settimeout(timeout_s)
        try:
            self.heard += self.socket.recv(65536).decode().splitlines()
        except TimeoutError:
            return

    def drain(self) -> None:
        """Read what is there, and discard everything received so far."""
        before = -1
        while before != len(self.heard):
            before = len(self.heard)
            self.take(0.05)
        self.heard.clear()


@pytest.fixture
def manager(tmp_path):
    made = Manager(tmp_path / "notify")
    yield made
    made.socket.close()


def test_the_manager_hears_everything_it_needs(start, run_dir, manager):
    """READY after the replay, a status with epoch, step and loss, the watchdog, STOPPING, time for the checkpoint."""
    environ = {
        "FAKE_TRAINER": "crawl@4",
        "FAKE_CHECKPOINT_S": "0.2",
        "NOTIFY_SOCKET": str(manager.path),
        "WATCHDOG_USEC": "600000",
    }
    daemon = start(environ=environ, task="digits", epochs=1000)
    assert manager.listen("READY=1") == "READY=1"
    assert daemon.status()["live"]
    assert not any(line.startswith("STOPPING") for line in manager.heard)
    # Which step it is told of first depends on the moment; the loss told with it is that step's.
    told = manager.listen("STATUS=running; epoch ")
    step, loss = (float(word) for word in re.findall(r"[0-9.]+", told)[2:4])
    assert loss == pytest.approx(1 / step, rel=1e-3)
    fed = manager.heard.count("WATCHDOG=1")
    started = time.monotonic()
    while manager.heard.count("WATCHDOG=1") < fed + 5 and time.monotonic() < started + 30:
        manager.take(0.1)
    assert manager.heard.count("WATCHDOG=1") >= fed + 5
    manager.heard.clear()
    daemon.send(signal.SIGTERM)
    manager.listen("STOPPING=1")
    assert int(manager.listen("EXTEND_TIMEOUT_USEC=").partition("=")[2]) == 90_000_000
    assert daemon.wait() == 143, daemon.stderr
    assert of_type(run_dir, m.RunStopped)

    # The last words of the first daemon may not be read yet.
    manager.drain()
    again = start(environ=environ)
    assert again.until(lambda status: status["phase"] == "running")
    manager.listen("STATUS=replaying")
    manager.listen("READY=1")
    order = [line for line in manager.heard if line.startswith(("STATUS=replaying", "EXTEND", "READY"))]
    assert order[0].startswith("STATUS=replaying")
    assert order[1].startswith("EXTEND_TIMEOUT_USEC=")
    assert order[-1] == "READY=1"


def test_a_daemon_with_nothing_to_do_is_ready_first(start, run_dir, manager):
    """On a completed run READY=1 comes before STOPPING=1, so the manager does not take the start for a failure."""
    assert start(epochs=1, task="digits").wait() == 0
    again = start(environ={"NOTIFY_SOCKET": str(manager.path)})
    assert again.wait() == 0
    manager.listen("STOPPING=1")
    assert manager.heard.index("READY=1") < manager.heard.index("STOPPING=1")


def test_a_manager_that_is_gone_is_no_obstacle(start, run_dir):
    """A notify socket that is not read costs a log line, nothing else."""
    daemon = start(environ={"NOTIFY_SOCKET": "/nonexistent/notify"}, epochs=1, task="digits")
    assert daemon.wait() == 0, daemon.stderr
