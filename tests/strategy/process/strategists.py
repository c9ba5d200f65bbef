"""A strategist of one of the strategies of liars.py, for the tests of it."""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from pathlib import Path

from tests.strategy.packets import packet, seed
from tests.waiting import becomes_true
from tolariad.strategy import read_state
from tolariad.strategy.process.child import StrategyLimits, StrategySetup
from tolariad.strategy.process.strategist import Strategist

LIARS = Path(__file__).with_name("liars.py")
ANSWER_S = 1.0
PATIENT = StrategyLimits(answer_s=20.0, stacks_s=0.1, backoff_s=0.05)
QUICK = StrategyLimits(answer_s=ANSWER_S, start_s=20.0, backoff_s=0.05, stacks_s=0.1, kill_s=20.0)


class Log:
    def __init__(self) -> None:
        self.text = b""

    def __call__(self, piece: bytes) -> None:
        self.text += piece


@asynccontextmanager
async def asked(name: str, limits: StrategyLimits = PATIENT, log: Log | None = None, **setup):
    """A strategist of one of the liars, with its process started."""
    setup = {"strategy": f"{LIARS}:{name}", "environment": dict(os.environ), "limits": limits} | setup
    strategist = Strategist(StrategySetup(sinks=(log,) if log else (), **setup))
    strategist.start()
    try:
        yield strategist
    finally:
        await strategist.close()
        assert strategies_of(os.getpid()) == []


def strategies_of(daemon: int) -> list[int]:
    """The processes of liars that a daemon started, and their children, by the command line that they inherited."""
    mark = str(LIARS).encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            line, state = (entry / "cmdline").read_bytes(), (entry / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if mark in line and f"--parent-pid\0{daemon}\0".encode() in line and state not in "ZX":
            found.append(int(entry.name))
    return found


async def runs(strategist: Strategist) -> None:
    """Wait until a process is ready."""
    assert await becomes_true(lambda: not strategist.problem)


async def ask(strategist: Strategist, epoch: int, fault: str = ""):
    """Ask about an epoch, and return the answer; a good one has one pause."""
    given = packet(epoch, 1.0, [seed("a")])
    given.experiment_name = fault
    return await strategist.ask(given, epoch)


def count_of(answer) -> int:
    return read_state(answer.state)["count"]
