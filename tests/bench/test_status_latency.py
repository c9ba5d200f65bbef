"""The time of a `Status` call while a run trains, beside an echo server that does nothing. Printed, never asserted."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import signal
import socket
import sys
import time
from pathlib import Path

import pytest

from tests.bench.machine import machine
from tests.control.clients import call
from tests.daemon.harness import DaemonProcess

pytestmark = pytest.mark.bench
CALLS = 1000
LIMIT_MS = 5.0
# Apart, as somebody asks who looks at a run: a burst would be answered out of warm caches.
APART_S = 0.005


def echo(path: str, answer_bytes: int) -> None:
    """As many bytes as a status has, for each call; on the loop that the daemon has."""
    import uvloop

    class Echo(asyncio.Protocol):
        def connection_made(self, transport) -> None:
            self.transport = transport

        def data_received(self, data: bytes) -> None:
            if data.endswith(b"\0"):
                self.transport.write(b"x" * (answer_bytes - 1) + b"\0")

    async def serve() -> None:
        server = await asyncio.get_running_loop().create_unix_server(Echo, path)
        async with server:
            await server.serve_forever()

    uvloop.run(serve())


def asked(path: Path) -> tuple[list[float], int]:
    """Milliseconds of each call, sorted, and the bytes of an answer."""
    taken, size = [], 0
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.connect(str(path))
        for _ in range(CALLS):
            began = time.perf_counter()
            sock.sendall(call("Status"))
            answer = sock.recv(1 << 20)
            while not answer.endswith(b"\0"):
                answer += sock.recv(1 << 20)
            taken.append((time.perf_counter() - began) * 1e3)
            size = len(answer)
            time.sleep(APART_S)
    return sorted(taken), size


def row(name: str, taken: list[float]) -> str:
    """Median, p99 and maximum."""
    return f"{name:<44}{taken[CALLS // 2]:>9.3f}{taken[CALLS * 99 // 100]:>9.3f}{taken[-1]:>9.3f}"


def test_status_while_training(tmp_path):
    """A thousand calls during training with the default thread count; the echo beside the same training."""
    run = tmp_path / "run"
    run.mkdir()
    trainer = [sys.executable, "-m", "tolariad.trainer", "--run", str(run)]
    trainer += ["--config-json", str(run / "config.resolved.json")]
    # A hundred epochs on, the digits are learnt by heart, and the detector takes every hard batch for trouble.
    sets = ["detect.act=false"]
    daemon = DaemonProcess(run, task="digits", epochs=100_000, sets=sets, trainer_command=trainer)
    daemon.until(lambda status: status["step"] > 100, "a hundred steps")
    status, size = asked(run / "control.sock")
    process = multiprocessing.get_context("spawn").Process(
        target=echo, args=(str(tmp_path / "echo"), size), daemon=True
    )
    process.start()
    while not (tmp_path / "echo").exists():
        time.sleep(0.01)
    bare, _ = asked(tmp_path / "echo")
    process.terminate()
    step = daemon.status()["step"]
    daemon.send(signal.SIGTERM)
    with contextlib.suppress(AssertionError):
        daemon.wait()

    head = f"{'milliseconds, ' + str(CALLS) + ' calls during training':<44}{'p50':>9}{'p99':>9}{'max':>9}"
    share = f"the limit is {LIMIT_MS:g} ms at p99; p99 against the echo's: {status[990] / bare[990]:.2f}"
    print("\n" + "\n".join([machine(), head, row("tolaria status, default threads", status), row("echo", bare), share]))
    assert len(status) == len(bare) == CALLS
    assert step > 100
