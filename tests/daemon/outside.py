"""Watch a trainer's page from a third process: when it froze, when the trainer stopped, what was sent meanwhile."""

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
    """Seconds since the trigger, steps applied after the freeze flag, and orders sent in the meantime."""

    frozen_s: float
    stands_s: float
    steps: int
    orders: int


def page_of(pid: int) -> Page:
    """Map the page from outside: the trainer's command line names the descriptor."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    descriptor = int(words[words.index(b"--page-fd") + 1])
    return Page.attach(os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDWR))


def critical(daemon: DaemonProcess, page: Page) -> Freeze:
    """Order CRITICAL over the control socket, and watch. The clock starts before the first byte is sent."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.connect(str(daemon.run_dir / "control.sock"))
        orders, begun_ns = page.orders, time.monotonic_ns()
        sock.sendall(call("Emergency", level="critical", reason="smoke"))
        return looked_on(page, orders, begun_ns)


def diskless(daemon: DaemonProcess, page: Page) -> Freeze:
    """Make the journal's disk fail, and watch. The clock starts with the first failed write."""
    told = daemon.run_dir / "diskless"
    orders = page.orders
    told.touch()
    seen = looked_on(page, orders, 0)
    begun_s = int(told.read_text()) / 1e9
    return seen._replace(frozen_s=seen.frozen_s - begun_s, stands_s=seen.stands_s - begun_s)


def looked_on(page: Page, orders: int, begun_ns: int) -> Freeze:
    """Wait until the page is frozen and the trainer's heartbeat shows a wait without updates."""
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
