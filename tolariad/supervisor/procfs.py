"""What the kernel of the machine says about processes, limits and memory, read from /proc and the cgroup tree.

Promises: reading never raises for something that is not there (a process that is gone, a hidden file): it says None or
"unknown". It must not know: trainers.
"""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Final

import msgspec

from tolariad.core.vocabulary.run import Limits

_SCHEDULERS: Final = {0: "other", 1: "fifo", 2: "rr", 3: "batch", 5: "idle", 6: "deadline"}
# Fields of /proc/PID/stat behind the command's closing parenthesis: field 3 is the first.
_STATE, _START_TICKS = 0, 19


class ProcessStat(msgspec.Struct, frozen=True):
    """One process: `start_ticks` with the boot's id names it for ever, its number alone does not."""

    state: str
    start_ticks: int


def boot_id() -> str:
    """Random number of this boot, in hexadecimal."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")


def process_stat(pid: int) -> ProcessStat | None:
    """State letter and start time of `pid`, or None where there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command may hold blanks and parentheses, so everything is counted from the last closing one.
    fields = text.rpartition(")")[2].split()
    return ProcessStat(fields[_STATE], int(fields[_START_TICKS]))


def is_running(pid: int, start_ticks: int) -> bool:
    """Whether that very process exists and is not merely waiting to be reaped."""
    stat = process_stat(pid) if pid > 0 else None
    return stat is not None and stat.start_ticks == start_ticks and stat.state not in "ZX"


def wait_channel(pid: int) -> str:
    """State letter and the kernel function a process sleeps in: what an operator needs of one that cannot be killed."""
    stat = process_stat(pid)
    if stat is None:
        return "gone"
    try:
        function = Path(f"/proc/{pid}/wchan").read_text().strip()
    except OSError:
        function = ""
    return f"{stat.state} {function}".strip() if function not in ("", "0") else stat.state


def own_limits() -> Limits:
    """What this process was really given; a service manager lowers limits without a word."""
    try:
        adjustment = int(Path("/proc/self/oom_score_adj").read_text())
    except OSError:
        adjustment = 0
    return Limits(
        rtprio=_soft(resource.RLIMIT_RTPRIO),
        memlock=_soft(resource.RLIMIT_MEMLOCK),
        nofile=_soft(resource.RLIMIT_NOFILE),
        oom_score_adj=adjustment,
        scheduler=scheduler_name(0),
    )


def scheduler_name(thread: int) -> str:
    """The scheduling class of a thread (0: the calling one). Raises ProcessLookupError where it is gone."""
    return _SCHEDULERS.get(os.sched_getscheduler(thread) & ~os.SCHED_RESET_ON_FORK, "unknown")


def _soft(which: int) -> int:
    soft = resource.getrlimit(which)[0]
    return -1 if soft == resource.RLIM_INFINITY else soft


def oom_kill_count() -> int | None:
    """How many processes of our control group the out-of-memory killer has ended so far; None where nobody says."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            count = _counter(Path("/sys/fs/cgroup" + path) / "memory.events")
        elif "memory" in controllers.split(","):
            count = _counter(Path("/sys/fs/cgroup/memory" + path) / "memory.oom_control")
        else:
            continue
        if count is not None:
            return count
    return None


def _counter(path: Path) -> int | None:
    try:
        words = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return None
    return next((int(word[1]) for word in words if word[0] == "oom_kill"), None)
