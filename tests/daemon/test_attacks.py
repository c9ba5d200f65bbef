"""Hostile clients of all kinds at once: training keeps its speed, the daemon its memory, other clients get answers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.control.clients import call, messages
from tests.daemon.harness import CallFailed, DaemonProcess, of_type
from tolariad.cli.tolaria import tolaria
from tolariad.control.connection import ServerLimits
from tolariad.core import messages as m

CLIENTS = ServerLimits().connections_a_user
GROWTH_MAX = 96 << 20
ESCAPES = "\x1b[2J\x1b]0;a title\x07\x9b31mred\r\b"


def connected(daemon: DaemonProcess) -> socket.socket:
    """Return a client's socket."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(60)
    sock.connect(str(daemon.run_dir / "control.sock"))
    return sock


def answered(daemon: DaemonProcess) -> socket.socket:
    """Return a connected client; retry while the one before it still counts."""
    while True:
        sock = connected(daemon)
        with contextlib.suppress(BrokenPipeError):
            sock.sendall(call("Status"))
        if any("error" not in one for one in messages(sock, 1)):
            return sock
        sock.close()


def resident(pid: int) -> int:
    """Return the bytes of memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def steps_in(daemon: DaemonProcess, seconds: float) -> float:
    """Return the steps per second over a window."""
    began, first = time.monotonic(), daemon.status()["step"]
    time.sleep(seconds)
    return (daemon.status()["step"] - first) / (time.monotonic() - began)


def flood(sock: socket.socket) -> None:
    """Send calls without end, and read nothing."""
    sock.settimeout(0.05)
    with contextlib.suppress(TimeoutError):
        sock.sendall(call("Status") * 100)


def drip(sock: socket.socket) -> None:
    """Send a byte from time to time of a call that never ends."""
    sock.send(b"{")
    time.sleep(0.1)


def ask_and_read(sock: socket.socket) -> None:
    """Call as fast as answers come."""
    sock.sendall(call("Status") * 20)
    messages(sock, 20)


def long_names(sock: socket.socket) -> None:
    """Send 64 KiB as a method's name, a parameter's name, and a text."""
    name = "x" * 65_536
    sock.sendall(call(name) + call("Note", **{name: 1}) + call("Note", text=name, id=name) + call("Status"))
    messages(sock, 4)


@contextlib.contextmanager
def attacked(daemon: DaemonProcess, *ways: Callable[[socket.socket], None]) -> Iterator[list[socket.socket]]:
    """Start each kind in its own thread, a stalled watcher, and idle clients up to one below the limit."""
    over = threading.Event()

    def attack(way: Callable[[socket.socket], None], sock: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while not over.is_set():
                way(sock)

    sockets = [connected(daemon) for _ in range(CLIENTS - 1)]
    sockets[0].sendall(call("Watch", more=True, interval_s=0.1))
    threads = [threading.Thread(target=attack, args=one) for one in zip(ways, sockets[1:], strict=False)]
    for thread in threads:
        thread.start()
    try:
        yield sockets
    finally:
        over.set()
        for sock in sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize("window_s", [1.0, pytest.param(4.0, marks=pytest.mark.torture)])
def test_training_does_not_notice_its_clients(start, run_dir, window_s):
    """All at once for a while: the speed stays within an order of magnitude, memory is bounded, another client is
    answered.
    """
    daemon = start(environ={"FAKE_STEP_S": "0.005"}, task="digits", epochs=100_000)
    daemon.until(lambda status: status["step"] > 50)
    quiet = steps_in(daemon, window_s)
    before = resident(daemon.pid)
    with attacked(daemon, flood, flood, drip, ask_and_read, long_names) as sockets:
        busy = steps_in(daemon, window_s * 2)
        grown = resident(daemon.pid) - before
        with answered(daemon), pytest.raises((CallFailed, OSError), match=r"Refused|closed|reset|Broken pipe"):
            daemon.call("Status")
        assert len(sockets) == CLIENTS - 1
    # A busy daemon may not have noticed yet that its clients are gone, and refuses one more.
    daemon.until(lambda status: status["phase"] == "running")
    daemon.send(signal.SIGTERM)
    assert daemon.wait() == 143, daemon.stderr

    assert busy > quiet / 10
    assert grown < GROWTH_MAX


def test_escapes_in_a_note_reach_no_terminal(start, run_dir):
    """The journal keeps the text; output and log contain no control characters."""
    daemon = start(environ={"FAKE_TRAINER": "crawl@4"}, task="digits", epochs=1000)
    daemon.until(lambda status: status["phase"] == "running")
    daemon.call("Note", text=ESCAPES, reason=ESCAPES)
    daemon.send(signal.SIGTERM)
    assert daemon.wait() == 143, daemon.stderr

    (note,) = of_type(run_dir, m.NoteAdded)
    assert note.text == ESCAPES
    shown = [CliRunner().invoke(tolaria, ["events", str(run_dir), *more]).output for more in ([], ["-o", "verbose"])]
    shown += [CliRunner().invoke(tolaria, ["why", str(run_dir), f"seq:{find(run_dir)}"]).output, daemon.stderr]
    assert all("2J" in one for one in shown[:2])
    assert [one for text in shown for one in text if one != "\n" and (ord(one) < 32 or 127 <= ord(one) < 160)] == []


def find(run_dir: Path) -> int:
    """Return the note's sequence number."""
    lines = CliRunner().invoke(tolaria, ["events", str(run_dir), "-o", "json", "-t", "Note"]).output.splitlines()
    return json.loads(lines[0])["seq"]
