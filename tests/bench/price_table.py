"""From measured blocks to a table: paired differences, quartiles, waits at the gate, the daemon's own time.

Every difference is that of two blocks of one round, so whatever else the machine does falls on both.
"""

from __future__ import annotations

import statistics
from typing import Any, NamedTuple

Round = dict[str, Any]


class Spread(NamedTuple):
    """Median and quartiles."""

    low: float
    median: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:+8.1f} [{self.low:+.0f} .. {self.high:+.0f}]"


def spread(values: list[float]) -> Spread:
    """Of at least two values."""
    return Spread(*statistics.quantiles(values, n=4, method="inclusive"))


def alike(rounds: list[Round], name: str) -> list[str]:
    """The loops of that name, numbered ones among them (`bare`, `bare 2`)."""
    return [one for one in rounds[0] if one.split()[0] == name]


def paired(rounds: list[Round], name: str, against: str, what: str) -> Spread:
    """Return `name` minus `against` in each round; if there are several of the latter (`bare`, `bare 2`), minus their
    mean.
    """
    names = alike(rounds, against)
    return spread([one[name][what] - statistics.fmean(one[other][what] for other in names) for one in rounds])


def waits(rounds: list[Round]) -> tuple[float, float, float]:
    """Share of steps that found the gate closed, and p50 and p99 of the wait over all steps, in microseconds."""
    closed = sorted(wait for one in rounds for wait in one["tolariad"]["waits_us"])
    steps = sum(one["tolariad"]["steps"] for one in rounds)
    every = [0.0] * (steps - len(closed)) + closed
    return len(closed) / steps, every[len(every) // 2], every[int(len(every) * 0.99)]


def lines(rounds: list[Round]) -> list[str]:
    """The rows of one scenario."""
    shown = [f"{'us a step':12}{'wall':>9}   {'over bare: wall':24}{'trainer thread CPU':26}{'preempted':>9}"]
    for name in rounds[0]:
        wall = statistics.median(one[name]["wall_us"] for one in rounds)
        preempted = statistics.median(one[name]["preempted"] for one in rounds)
        more, cpu = paired(rounds, name, "bare", "wall_us"), paired(rounds, name, "bare", "cpu_us")
        differences = f"{'':50}" if alike(rounds, "bare") == [name] else f"{more!s:24}{cpu!s:26}"
        shown.append(f"{name:12}{wall:>9.1f}   {differences}{preempted:>9.2f}")
    share, p50, p99 = waits(rounds)
    shown.append(f"gate: closed at {share:.1%} of the steps, waits p50 {p50:.0f} us, p99 {p99:.0f} us")
    daemon = spread([one["tolariad"]["daemon_us"] for one in rounds])
    busiest = statistics.median(one["tolariad"]["daemon_threads_us"][0] for one in rounds)
    shown.append(f"daemon: {daemon.median:.0f} us of CPU a step, {busiest:.0f} of them the recorder's thread")
    return shown
