"""Those that look at a run while it is measured: one that scrapes, one that watches, a bus."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import shutil
import socket
import struct
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from signal import SIGCONT, SIGSTOP

import pytest

from tests.outside.servers import redis_server

_TOLARIA = "from tolariad.cli.tolaria import main; main()"
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def beside(look: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run `look` in a thread beside the block. It gets an event, and returns when that is set."""
    over = threading.Event()
    thread = threading.Thread(target=look, args=(over,))
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextlib.contextmanager
def scraped(path: Path) -> Iterator[None]:
    """Read the run's page each second."""

    def scrape(over: threading.Event) -> None:
        while not over.wait(1.0):
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as sock:
                sock.settimeout(5.0)
                sock.connect(str(path))
                sock.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
                while sock.recv(1 << 16):
                    pass

    with beside(scrape):
        yield


class Watch:
    """`tolaria watch` on a terminal of 80x24, from the moment when a file is there. `show` is a look for `beside`.

    `first_s`: seconds from its start to its first byte. `drawn`: bytes so far.
    """

    def __init__(self, folder: Path, begin: Path) -> None:
        self.drawn = 0
        self.first_s = 0.0
        self.pid = 0
        self._folder, self._begin = folder, begin
        self._begun = 0.0

    def used_s(self) -> float:
        """Return its processor time so far, in seconds; to a hundredth."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * _TICK_S

    @property
    def age_s(self) -> float:
        """Return the seconds since its start."""
        return time.monotonic() - self._begun

    def show(self, over: threading.Event) -> None:
        """Start it, read what it draws, and press its key to leave when the event is set."""
        while not self._begin.exists():
            if over.wait(0.05):
                return
        self._begun = time.monotonic()
        self.pid, terminal = pty.fork()
        if self.pid == 0:
            os.environ |= {"TERM": "xterm-256color", "LINES": "24", "COLUMNS": "80"}
            os.execv(sys.executable, [sys.executable, "-c", _TOLARIA, "watch", str(self._folder)])
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
        with contextlib.suppress(OSError):  # the screen is gone
            while True:
                if select.select([terminal], [], [], 0.2)[0]:
                    self.drawn += len(os.read(terminal, 1 << 16))
                    self.first_s = self.first_s or self.age_s
                elif over.is_set():
                    # A key that is pressed before anybody reads may be lost.
                    os.write(terminal, b"q")
        os.waitpid(self.pid, 0)
        os.close(terminal)


@contextlib.contextmanager
def bus(folder: Path, state: str) -> Iterator[str]:
    """Give the address of a bus. `state`: `works`; `stopped`: it takes connections and answers nothing; `full`; `dead`.

    Without redis-server it is dead in any case.
    """
    if state == "dead" or shutil.which("redis-server") is None:
        yield "redis://127.0.0.1:1"
        return
    redis = pytest.importorskip("redis", reason="redis (extra `bus`) is not installed")
    full = ("--maxmemory", "1kb", "--maxmemory-policy", "noeviction") if state == "full" else ()
    with redis_server(folder, *full) as url:
        client = redis.Redis.from_url(url)
        pid = client.info("server")["process_id"]
        if state == "stopped":
            os.kill(pid, SIGSTOP)
        try:
            yield url
        finally:
            os.kill(pid, SIGCONT)
            if state == "works":
                print(f"  on the bus: {client.xlen('oona.telemetry')} entries of steps")
            client.close()
