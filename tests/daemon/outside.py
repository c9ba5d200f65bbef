"""A trainer's page as a third process sees it: when it froze, when the trainer stands, what it was sent meanwhile."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import NamedTuple

from tests.control.clients import call
from tests.daemon.harness import DaemonProcess
from tolariad.channel import Activity, Page

PATIENCE_S = 30.0
LOOK_S = 50e-6
STANDING = (Activity.GATE, Activity.END)


class Freeze(NamedTuple):
    """Seconds from what was to lead to it; steps that were still applied behind the flag, and orders sent meanwhile."""

    frozen_s: float
    stands_s: float
    steps: int
    orders: int


def page_of(pid: int) -> Page:
    """Mapped from outside: the trainer's command line says which descriptor it is."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    descriptor = int(words[words.index(b"--page-fd") + 1])
    return Page.attach(os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDWR))


def critical(daemon: DaemonProcess, page: Page) -> Freeze:
    """Order CRITICAL over the control socket, and look on. The clock begins before the first byte is in the socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.connect(str(daemon.run_dir / "control.sock"))
        orders, begun_ns = page.orders, time.monotonic_ns()
        sock.sendall(call("Emergency", level="critical", reason="smoke"))
        return looked_on(page, orders, begun_ns)


def diskless(daemon: DaemonProcess, page: Page) -> Freeze:
    """Take the journal's disk away, and look on. The clock begins with the first write that fails."""
    told = daemon.run_dir / "diskless"
    orders = page.orders
    told.touch()
    seen = looked_on(page, orders, 0)
    begun_s = int(told.read_text()) / 1e9
    return seen._replace(frozen_s=seen.frozen_s - begun_s, stands_s=seen.stands_s - begun_s)


def looked_on(page: Page, orders: int, begun_ns: int) -> Freeze:
    """Until the page is frozen and the trainer beats where no update is made, which it does behind a look at the page."""
    deadline_ns = time.monotonic_ns() + int(PATIENCE_S * 1e9)

    def wait(seconds: float) -> int:
        time.sleep(seconds)
        now_ns = time.monotonic_ns()
        assert now_ns < deadline_ns, "the page is not frozen, or the trainer does not stand"
        return now_ns

    frozen_ns = time.monotonic_ns()
    while not page.frozen:
        frozen_ns = wait(LOOK_S)
    step = page.heartbeat.step
    stands_ns = frozen_ns
    while not ((beat := page.heartbeat).activity in STANDING and beat.mono_ns > frozen_ns):
        stands_ns = wait(LOOK_S)
    return Freeze((frozen_ns - begun_ns) / 1e9, (stands_ns - begun_ns) / 1e9, beat.step - step, page.orders - orders)
