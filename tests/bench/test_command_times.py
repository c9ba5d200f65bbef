"""How long an operator waits for a whole command, interpreter's start included. Printed, never asserted.

`status --json` of a run at rest and of one that trains, `events -n 20` on a journal of a million steps, one a frame.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.bench.journal_reading import MILLION, TABLE, begun, steps
from tests.bench.machine import machine
from tests.daemon.harness import DaemonProcess
from tolariad.cli.errors import Exit
from tolariad.core.messages.vocabulary import encode_event

pytestmark = pytest.mark.bench
ROUNDS = 9
LIMIT_S = 0.25


def million(folder: Path) -> Path:
    """A run's folder with a journal as a million steps leave it."""
    with begun(folder / "journal", segment_bytes=64_000_000, tabulation=TABLE) as journal:
        for one in steps(MILLION):
            journal.commit([encode_event(one)], epoch=one.epoch, step=one.step, wall_ns=one.wall, mono_ns=one.mono)
    return folder


def seconds(command: list[str]) -> float:
    """One whole call, its output taken."""
    began = time.perf_counter()
    # With bytecode kept, as everywhere but in a test's environment.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(command, stdout=subprocess.DEVNULL, env=environment)
    assert done.returncode in (Exit.DONE, Exit.NOT_REACHABLE)
    return time.perf_counter() - began


def taken(commands: dict[str, list[str]]) -> dict[str, list[float]]:
    """Interleaved rounds; one before them, that writes the bytecode of a new environment."""
    for command in commands.values():
        seconds(command)
    rounds = [{name: seconds(command) for name, command in commands.items()} for _ in range(ROUNDS)]
    return {name: [one[name] for one in rounds] for name in commands}


def test_commands_are_answered_while_somebody_waits(tmp_path, quick_path):
    """The interpreter alone beside them."""
    run = tmp_path / "run"
    run.mkdir()
    trainer = [sys.executable, "-m", "tolariad.trainer", "--run", str(run)]
    trainer += ["--config-json", str(run / "config.resolved.json")]
    large = million(quick_path / "million")
    tolaria = str(Path(sys.executable).with_name("tolaria"))
    status = [tolaria, "status", str(run), "--json"]
    daemon = DaemonProcess(run, task="digits", epochs=100_000, sets=[], trainer_command=trainer)
    daemon.until(lambda status: status["step"] > 100, "a hundred steps")
    try:
        found = taken({"status --json, while it trains": status})
    finally:
        daemon.send(signal.SIGTERM)
    daemon.wait()
    found |= taken(
        {
            "status --json, at rest": status,
            "events -n 20, of a million": [tolaria, "events", str(large), "-n", "20"],
            "the interpreter alone": [sys.executable, "-c", "pass"],
        }
    )

    print(f"\n{machine()}\n{ROUNDS} interleaved rounds; seconds, limit {LIMIT_S}")
    print(f"{'':40}{'median':>9}{'range':>18}")
    for name, several in found.items():
        between = f"{min(several):.3f} to {max(several):.3f}"
        print(f"{name:40}{statistics.median(several):>9.3f}{between:>18}")
    assert all(len(several) == ROUNDS for several in found.values())
