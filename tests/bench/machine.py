"""The description of the machine for a table of prices, and load beside a measurement."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import platform
import subprocess
import sys
from collections.abc import Iterator

from tolariad.supervisor.process import child_environment

_CLASSES = {os.SCHED_OTHER: "ordinary", os.SCHED_FIFO: "SCHED_FIFO", os.SCHED_RR: "SCHED_RR", os.SCHED_BATCH: "batch"}


def machine() -> str:
    """Processor kind, cores, load, kernel, scheduling class, Python: in one line."""
    policy = _CLASSES.get(os.sched_getscheduler(0), "another")
    load = " ".join(f"{one:.1f}" for one in os.getloadavg())
    version = ".".join(map(str, sys.version_info[:3]))
    return (
        f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, load {load}, Linux {platform.release()}, "
        f"{policy} scheduling, Python {version}"
    )


def scheduled(policy: int) -> str:
    """Put this process into a scheduling class; why that is refused, or nothing."""
    try:
        os.sched_setscheduler(0, policy, os.sched_param(1 if policy == os.SCHED_FIFO else 0))
    except OSError as error:
        return f"not given: {error.strerror}"
    return ""


def as_a_trainer(module: str, *arguments: str) -> str:
    """Return the output of `module`, run in the environment of a trainer.

    It has as many threads as a trainer would have: the tests' own limit of one is not passed on.
    """
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        env=child_environment(environment),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout


def become_a_trainer(module: str) -> None:
    """Start `module` again if this process does not have a trainer's environment."""
    wanted = child_environment(os.environ)
    if wanted != dict(os.environ):
        os.execve(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]], wanted)


def _burn() -> None:
    # Never in the class of who measures: two burners under SCHED_FIFO would hold every core from everybody.
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    while True:
        sum(range(10_000))


@contextlib.contextmanager
def burners(count: int) -> Iterator[None]:
    """So many processes that do nothing but compute."""
    several = [multiprocessing.get_context("fork").Process(target=_burn, daemon=True) for _ in range(count)]
    for one in several:
        one.start()
    try:
        yield
    finally:
        for one in several:
            one.terminate()
            one.join()
