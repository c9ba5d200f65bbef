"""The price of those that look at a run: a bus, a follower to TensorBoard, a scrape each second and a watch, or nobody.

OBSERVED_PAIRS (5) is the number of blocks in each process, OBSERVED_PROCESSES (2) that of processes of each kind, which
take turns. A step has 20 ms. Nothing is judged here. Without redis-server the bus is an address where nobody answers;
without textual the watch prints a line a second.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import shutil
import signal
import socket
import statistics
import struct
import sys
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench import price_table
from tests.bench.machine import machine
from tests.bench.test_step_price import SCENARIOS, measured, run_folder
from tests.core.simulate import World
from tests.outside.servers import redis_server
from tolariad.core import messages as m
from tolariad.core.calc.settings.model import Settings
from tolariad.core.calc.settings.receivers import Notify, Telemetry
from tolariad.daemon.receivers import Receivers
from tolariad.kernel import Published

PAIRS = int(os.environ.get("OBSERVED_PAIRS", "5"))
PROCESSES = int(os.environ.get("OBSERVED_PROCESSES", "2"))
TURNS = 20_000
LONG = next(one for one in SCENARIOS if one.model == "deep")
_TOLARIA = "from tolariad.cli.tolaria import main; main()"
KINDS = ("nobody", "all", "all, the bus stopped")
__all__ = ["run_folder"]


@contextlib.contextmanager
def scraped(path: Path) -> Iterator[None]:
    """Read the run's page each second."""
    over = threading.Event()

    def scrape() -> None:
        while not over.wait(1.0):
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as sock:
                sock.settimeout(5.0)
                sock.connect(str(path))
                sock.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
                while sock.recv(1 << 16):
                    pass

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextlib.contextmanager
def watched(folder: Path) -> Iterator[None]:
    """Show the run on a terminal of 80x24, from the moment when it has a page of metrics."""
    over = threading.Event()

    def watch() -> None:
        while not (folder / "metrics.sock").exists():
            if over.wait(0.05):
                return
        pid, terminal = pty.fork()
        if pid == 0:
            os.environ |= {"TERM": "xterm-256color", "LINES": "24", "COLUMNS": "80"}
            os.execv(sys.executable, [sys.executable, "-c", _TOLARIA, "watch", str(folder)])
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
        begun, drawn = time.monotonic(), 0
        with contextlib.suppress(OSError):  # the screen is gone
            while True:
                if select.select([terminal], [], [], 0.2)[0]:
                    drawn += len(os.read(terminal, 1 << 16))
                elif over.is_set():
                    # A key that is pressed before anybody reads may be lost.
                    os.write(terminal, b"q")
        _, _, used = os.wait4(pid, 0)
        took = time.monotonic() - begun
        share = (used.ru_utime + used.ru_stime) / took
        print(
            f"  the watch: {drawn / took / 1000:.1f} kB/s, {share:.1%} of a core over {took:.0f} s, its start included"
        )
        os.close(terminal)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextlib.contextmanager
def bus(folder: Path, *, stopped: bool) -> Iterator[str]:
    """Give the address of a bus; `stopped`: its process is, so that it takes connections and answers nothing."""
    redis = pytest.importorskip("redis", reason="redis (extra `bus`) is not installed") if _has_server() else None
    if redis is None:
        yield "redis://127.0.0.1:1"
        return
    with redis_server(folder) as url:
        client = redis.Redis.from_url(url)
        pid = client.info("server")["process_id"]
        if stopped:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield url
        finally:
            os.kill(pid, signal.SIGCONT)
            if not stopped:
                print(f"  on the bus: {client.xlen('oona.telemetry')} entries of steps")
            client.close()


def _has_server() -> bool:
    return shutil.which("redis-server") is not None


@pytest.mark.bench
def test_the_price_of_observers_is_printed(run_folder, tmp_path, seed):
    """Paired blocks, each recorded one beside a bare one, in processes with and without observers in turn."""
    rounds: dict[str, list[price_table.Round]] = {kind: [] for kind in KINDS}
    for number in range(PROCESSES):
        for kind in KINDS:
            folder = run_folder / f"{number}-{KINDS.index(kind)}"
            folder.mkdir()
            rounds[kind] += observed(kind, folder, tmp_path / folder.name, seed + number)
    print(f"\n== observers: {PROCESSES} x {PAIRS} blocks of {LONG.steps} steps; {machine()}")
    print(f"{'':24}{'us a step':>10}  {'over bare':26}{'gate p50':>9}{'p99':>7}{'daemon CPU':>12}")
    for kind, found in rounds.items():
        wall = statistics.median(one["tolariad"]["wall_us"] for one in found)
        over = price_table.paired(found, "tolariad", "bare", "wall_us")
        _, p50, p99 = price_table.waits(found)
        daemon = statistics.median(one["tolariad"]["daemon_us"] for one in found)
        print(f"{kind:24}{wall:>10.0f}  {over!s:26}{p50:>9.0f}{p99:>7.0f}{daemon:>12.0f}")
    counts = {kind: len(found) for kind, found in rounds.items()}
    # On a crowded machine a block may look like a hang. The trainer that follows has measured fewer.
    print(f"blocks: {counts}")
    assert all(counts.values())


def observed(kind: str, folder: Path, aside: Path, seed: int) -> list[price_table.Round]:
    """Return the blocks of one process."""
    if kind == "nobody":
        return measured(LONG, folder, ["bare"], seed, pairs=PAIRS)
    aside.mkdir(parents=True)
    with bus(aside, stopped="stopped" in kind) as url, scraped(folder / "metrics.sock"), watched(folder):
        more = (f"telemetry.bus_url={url}", "follow=[{to: tensorboard}]")
        return measured(LONG, folder, ["bare"], seed, *more, pairs=PAIRS)


@pytest.mark.bench
async def test_the_price_of_a_turn_is_printed(tmp_path):
    """Microseconds of the recorder's thread to queue a step, for each set of receivers; nothing is sent yet."""
    world = World(1)
    world.run(20)
    step = m.StepCompleted(step=1, epoch=1, batch=1, loss=1.0, grad_norm=1.0, lr=0.1, rates=1, wall=1)
    turn = Published(world.state, ((9, step),), (), None)
    kinds = {
        "none": Settings(),
        "notify": Settings(notify=Notify(command="exit 0")),
        "bus": Settings(telemetry=Telemetry(bus_url="unix:///nowhere")),
        "notify, bus, traces": Settings(
            notify=Notify(command="exit 0"),
            telemetry=Telemetry(bus_url="unix:///nowhere", otlp_endpoint="http://127.0.0.1:1"),
        ),
    }
    print(f"\n{'recorder, us a step':24}{'median':>8}{'p99':>8}   (the queue is full from message 10 000 on)")
    for kind, settings in kinds.items():
        receivers = Receivers(tmp_path, bytes(16))
        receivers.configure(settings)
        took = []
        for _ in range(TURNS):
            begun = time.perf_counter_ns()
            receivers.publish(turn)
            took.append((time.perf_counter_ns() - begun) / 1e3)
        took.sort()
        print(f"{kind:24}{took[TURNS // 2]:>8.2f}{took[TURNS * 99 // 100]:>8.2f}")
        dropped = sum(one.dropped for one in receivers.status())
        assert dropped == (TURNS - 10_000 if "bus" in kind else 0)
