"""CRITICAL, and a journal that is lost: how long until the shared page is frozen, and until the trainer stands.

Seen from a third process that maps the page. An order's clock begins before its first byte is in the control socket,
the other one with the first write that fails. The trainer is spared the kill that follows an order, so only the page
stops it. The last columns show that no order was sent, and how many updates in progress ended after the flag. With
steps of 50 ms the trainer stops up to 50 ms after the flag: it computes on to its gate. It beats every 50 ms while it
stands, and only a beat after the flag is believed: some rows show that much too much. Printed; asserted is only that
nothing but the page was needed.

    python -m tests.bench.test_freeze_speed [--rounds 30] [--kinds bare torch]
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.bench.machine import machine
from tests.daemon.harness import SETS, DaemonProcess
from tests.daemon.outside import Freeze, critical, diskless, page_of
from tolariad.channel import Page
from tolariad.core.calc.health.budgets import BUDGETS

STEPS_MS = (2, 50)
# A trainer without torch, whose steps compute nothing, and a real one. The real one keeps a core busy and takes seconds
# to start, so it has a third of the rounds.
KINDS = {"bare": 1, "torch": 3}
ROUNDS = 30
SMALL = ["journal.segment_bytes=16000000", "detect.act=false", "rollback.fast_path_enabled=false"]
HEAD = f"{'milliseconds':<44}{'frozen p50':>11}{'worst':>8}{'stands p50':>12}{'worst':>8}{'orders':>8}{'steps':>7}"


def begun(run_dir: Path, kind: str, step_ms: int) -> DaemonProcess:
    """A daemon whose trainer takes such steps."""
    if kind == "bare":
        asked: dict[str, object] = {"task": "digits", "epochs": 1, "sets": SETS}
        environ = {"FAKE_STEP_S": str(step_ms / 1e3), "FAKE_EPOCH": "1000000"}
    else:
        sets = [*SMALL, f"task_options.step_ms={step_ms}", "batch_size=1", "torch_threads=1"]
        asked = {"task": "tests.bench.freeze_task:FreezeTask", "epochs": 1, "sets": sets, "trainer_command": None}
        environ = {}
    if (run_dir / "config.resolved.json").exists():
        asked.pop("task")
        asked.pop("epochs")
    (run_dir / "spared").touch()
    return DaemonProcess(run_dir, module="tests.daemon.start_spared", environ=environ, **asked)


def training(daemon: DaemonProcess, step: int) -> tuple[int, Page]:
    """The trainer's number and page, a moment after it got beyond that step: anywhere within one."""
    status = daemon.until(lambda status: (status.get("step") or 0) > step + 2, "new steps")
    time.sleep(random.uniform(0.1, 0.2))
    pid = int(status["trainer"]["pid"])
    return pid, page_of(pid)


def ordered(run_dir: Path, kind: str, step_ms: int, rounds: int) -> list[Freeze]:
    """One daemon; after every freeze an operator resumes."""
    daemon, found, step = begun(run_dir, kind, step_ms), list[Freeze](), 0
    try:
        for _ in range(rounds):
            pid, page = training(daemon, step)
            found.append(critical(daemon, page))
            step = page.heartbeat.step
            page.close()
            os.kill(pid, signal.SIGKILL)
            daemon.until(lambda status: status["phase"] == "frozen" and not status["trainer"]["alive"], "its end")
            daemon.call("Resume")
    finally:
        daemon.kill()
    return found


def lost(run_dir: Path, kind: str, step_ms: int, rounds: int) -> list[Freeze]:
    """A daemon a round: one that has lost its journal records nothing any more."""
    found, step = list[Freeze](), 0
    for _ in range(rounds):
        daemon = begun(run_dir, kind, step_ms)
        try:
            _, page = training(daemon, step)
            found.append(diskless(daemon, page))
            step = page.heartbeat.step
            page.close()
        finally:
            daemon.kill()
        (run_dir / "diskless").unlink()
    return found


WAYS: dict[str, Callable[[Path, str, int, int], list[Freeze]]] = {"emergency critical": ordered, "journal lost": lost}


def row(name: str, found: Sequence[Freeze]) -> str:
    """Medians and worst ones."""
    frozen, stands = ([1e3 * value for value in values] for values in list(zip(*found, strict=True))[:2])
    orders, steps = sum(one.orders for one in found), max(one.steps for one in found)
    return (
        f"{name:<44}{statistics.median(frozen):>11.2f}{max(frozen):>8.2f}"
        f"{statistics.median(stands):>12.2f}{max(stands):>8.2f}{orders:>8}{steps:>7}"
    )


def run(rounds: int, kinds: Sequence[str] = tuple(KINDS)) -> tuple[str, list[Freeze]]:
    """Measure in a folder of its own, on the disk of the working tree; the table and all that is in it."""
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir=Path.cwd()))
    lines, everything = [machine(), HEAD], list[Freeze]()
    try:
        for number, (kind, step_ms, way) in enumerate((k, s, w) for k in kinds for s in STEPS_MS for w in WAYS):
            run_dir = folder / str(number)
            run_dir.mkdir()
            found = WAYS[way](run_dir, kind, step_ms, -(-rounds // KINDS[kind]))
            lines.append(row(f"{way}, {kind}, steps of {step_ms} ms ({len(found)})", found))
            everything += found
    finally:
        shutil.rmtree(folder)
    limit = BUDGETS["emergency_critical"].limit
    return "\n".join([*lines, f"rounds in brackets; the limit is {limit:g} ms"]), everything


@pytest.mark.bench
def test_the_page_freezes_the_trainer():
    """The table. No freeze took an order, and after none of them more than the update in progress was made."""
    text, found = run(int(os.environ.get("TOLARIA_BENCH_ROUNDS", str(ROUNDS))))
    print(f"\n{text}")
    assert len(found) > 0
    assert all((one.orders, one.steps <= 1) == (0, True) for one in found)


def main() -> None:
    """By hand."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--kinds", nargs="+", choices=tuple(KINDS), default=tuple(KINDS))
    given = parser.parse_args()
    print(run(given.rounds, given.kinds)[0])


if __name__ == "__main__":
    main()
