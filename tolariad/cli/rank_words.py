"""The words of `status` and `why` for several ranks: who runs, who is waited for, and the times of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tolariad.cli.output import duration, painted, table
from tolariad.core import messages as m
from tolariad.core.calc.text.phrases import listed
from tolariad.forensics.rank_fates import Fate


def ranks_words(told: Mapping[str, Any]) -> str:
    """Return how many ranks there are, which of them do not run, who is waited for, and their batches."""
    ranks = told["ranks"]
    shown = [str(len(ranks))]
    if odd := [f"rank {one['rank']} {one['process']}" for one in ranks if one["process"] not in ("running", None)]:
        shown.append(painted(listed(odd), "red"))
    elif ranks[0]["process"]:
        shown.append("all running")
    if told["slowest"] is not None:
        shown.append(f"the others wait for rank {told['slowest']} in {told['share']:.0%} of a step")
    if told["batch"]:
        shown.append(f"batch {ranks[0]['batch']} a rank, {told['batch']} in all")
    return ", ".join(shown)


def times_lines(ranks: Sequence[m.RankTimes]) -> Iterator[str]:
    """Yield a row for each rank with the means of its timed steps, then who is waited for."""
    rows: list[tuple[str, ...]] = [("RANK", "PID", "COMPUTE", "WAIT", "STEPS")]
    for one in ranks:
        means = (duration(seconds / one.steps) if one.steps else "-" for seconds in (one.compute_s, one.wait_s))
        rows.append((str(one.rank), str(one.pid), *means, str(one.steps)))
    yield from table(rows, range(5))
    if (slow := m.slowest_rank(ranks)) is not None:
        yield f"rank {slow.rank} is the slowest: the others wait for it in {slow.share:.0%} of a step"


def fate_lines(fates: Sequence[Fate]) -> Iterator[str]:
    """Yield a line for each rank that had troubles, with each of them in order."""
    for rank in sorted({one.rank for one in fates}):
        told = (
            one.did + (f" after step {one.step}" if one.step is not None else "") + f" (event {one.seq})"
            for one in fates
            if one.rank == rank
        )
        yield f"rank {rank}: {', '.join(told)}"
