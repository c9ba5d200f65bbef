"""Facts about processes, limits and memory, read from /proc and the cgroup tree.

Promises: a missing source (a process that is gone, a hidden file) gives None or "unknown"; it does not raise.
"""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from tolariad.core import messages as m

_SCHEDULERS: Final = {0: "other", 1: "fifo", 2: "rr", 3: "batch", 5: "idle", 6: "deadline"}
# Indices of /proc/PID/stat counted after the command's closing parenthesis: index 0 is field 3.
_STATE, _START_TICKS = 0, 19


class ProcessStat(msgspec.Struct, frozen=True):
    """One process. Pid, `start_ticks` and boot id together are unique; a pid alone is reused."""

    state: str
    start_ticks: int


def process_stat(pid: int) -> ProcessStat | None:
    """Return state letter and start time of `pid`, or None if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command may contain blanks and parentheses: count from the last closing one.
    fields = text.rpartition(")")[2].split()
    return ProcessStat(fields[_STATE], int(fields[_START_TICKS]))


def zombie_status(pid: int) -> int | None:
    """Return the wait status of a process that has ended and is not reaped; None if it is none, or not ours to know."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    return int(fields[-1]) if fields[_STATE] in "ZX" else None


def is_running(pid: int, start_ticks: int) -> bool:
    """Return whether that process exists and is not a zombie."""
    stat = process_stat(pid) if pid > 0 else None
    return stat is not None and stat.start_ticks == start_ticks and stat.state not in "ZX"


def wait_channel(pid: int) -> str:
    """Return the state letter and the kernel function a process sleeps in, to explain why it cannot be killed."""
    stat = process_stat(pid)
    if stat is None:
        return "gone"
    try:
        function = Path(f"/proc/{pid}/wchan").read_text().strip()
    except OSError:
        function = ""
    return f"{stat.state} {function}".strip() if function not in ("", "0") else stat.state


def catches(pid: int, number: signal.Signals) -> bool:
    """Return whether the process handles the signal. If it does not, the signal would kill it."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return False
    caught = next((line.split()[1] for line in lines if line.startswith("SigCgt:")), "0")
    return bool(int(caught, 16) >> (number - 1) & 1)


def own_limits() -> m.ServiceLimits:
    """Return the limits in force. A service manager may have lowered those that were asked for."""
    try:
        adjustment = int(Path("/proc/self/oom_score_adj").read_text())
    except OSError:
        adjustment = 0
    return m.ServiceLimits(
        rtprio=_soft(resource.RLIMIT_RTPRIO),
        memlock=_soft(resource.RLIMIT_MEMLOCK),
        nofile=_soft(resource.RLIMIT_NOFILE),
        oom_score_adj=adjustment,
        scheduler=scheduler_name(0),
    )


def scheduler_name(thread: int) -> str:
    """Return the scheduling class of a thread (0: the calling one). Raises ProcessLookupError if it is gone."""
    return _SCHEDULERS.get(os.sched_getscheduler(thread) & ~os.SCHED_RESET_ON_FORK, "unknown")


def _soft(which: int) -> int:
    soft = resource.getrlimit(which)[0]
    return -1 if soft == resource.RLIM_INFINITY else soft


def oom_kill_count() -> int | None:
    """Return how many processes of our control group the out-of-memory killer has killed, or None if unknown."""
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


def resident_bytes(pid: int) -> int:
    """Return the memory that a process holds, in bytes; 0 if it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
    except (OSError, IndexError, ValueError):
        return 0


def available_bytes() -> int | None:
    """Return the memory that processes here can still get, of the machine and of each control group above; or None."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        groups = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    found = [int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")]
    for group in groups:
        _, controllers, path = group.split(":", 2)
        if controllers == "":
            found += _left(Path("/sys/fs/cgroup"), path, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            found += _left(Path("/sys/fs/cgroup/memory"), path, *names)
    return min(found, default=None)


def _left(root: Path, path: str, limit: str, usage: str, cache: str) -> Iterator[int]:
    """Yield what each control group may still use, up to the root. Pages of files that nobody uses are free memory."""
    own = root / path.strip("/")
    for folder in (own, *own.parents):
        try:
            most = (folder / limit).read_text().strip()
            used = int((folder / usage).read_text())
            kept = [line.split() for line in (folder / "memory.stat").read_text().splitlines()]
        except (OSError, ValueError):
            most = "max"
        if most.isdecimal():
            yield max(0, int(most) - used + sum(int(count) for name, count in kept if name == cache))
        if folder == root:
            return


def _counter(path: Path) -> int | None:
    try:
        words = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return None
    return next((int(word[1]) for word in words if word[0] == "oom_kill"), None)
