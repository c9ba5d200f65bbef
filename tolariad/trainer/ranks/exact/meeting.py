"""Where ranks wait for one another: a line of words for each in shared memory, and bounded waits.

Invariants: each line has one writer. A rank that has come to a meeting has stored all of what it wrote before; a rank
that leaves one sees all of that. Nobody waits for a rank that has ended.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import torch

from tolariad.channel import futex

LINE_BYTES: Final = 128
_WORDS: Final = LINE_BYTES // 8
_CAME, _PROCESS, _GAVE_UP, _STEP, _LEAVES, _SETTINGS = range(6)
# At most so long at a time: a wake that is lost between two processes costs no more.
_SLEEP_S: Final = 0.001
# Look so often before sleeping: where every rank has a core, the others come within microseconds.
_LOOKS: Final = 200
# A stopped process may be continued at once, by a debugger for example.
STOPPED_S: Final = 5.0
_LOOK_AT_PROCESSES_S: Final = 0.25


class RankLost(Exception):
    """A rank did not come to the sum of a step, and will not. `rank`: the one; `why`: what is seen of it."""

    def __init__(self, rank: int, step: int, why: str) -> None:
        super().__init__(
            f"Rank {rank} {why}, so the gradients of step {step} cannot be summed. End all ranks, then resume from the "
            "newest checkpoint."
        )
        self.rank = rank
        self.why = why


class Meeting:
    """One rank's view of the lines. `limit_s`: how long it waits for a rank that lives and runs.

    `waiting` is called about every millisecond of a wait, for a sign of life; what it raises ends the wait.
    """

    def __init__(
        self, lines: torch.Tensor, *, rank: int, ranks: int, limit_s: float, waiting: Callable[[], None] | None
    ) -> None:
        """`lines`: bytes [ranks * LINE_BYTES] of a shared mapping, all zero before the first rank begins."""
        self._address = lines.data_ptr()
        self._words = lines.numpy().data.cast("Q")
        self._rank, self._ranks = rank, ranks
        self._limit_s, self._waiting = limit_s, waiting
        self._count = self._step = 0
        self._processes: dict[int, int] = {}
        self._words[rank * _WORDS + _PROCESS] = os.getpid()

    @property
    def is_fresh(self) -> bool:
        """Return whether this rank has met nobody yet, in any process."""
        return self._words[self._rank * _WORDS + _CAME] == 0

    def settle(self, values: tuple[int, ...]) -> None:
        """Show the settings of this rank to the others: up to 11 words of 64 bits."""
        at = self._rank * _WORDS + _SETTINGS
        for number, value in enumerate(values):
            self._words[at + number] = value

    def settings(self, rank: int, count: int) -> tuple[int, ...]:
        """Return the first settings of a rank, after all have met."""
        at = rank * _WORDS + _SETTINGS
        return tuple(self._words[at : at + count])

    def begin(self, step: int, leaves: int) -> None:
        """Say which step this rank is in, and how many leaves it has."""
        self._step = step
        self._words[self._rank * _WORDS + _STEP] = step
        self._words[self._rank * _WORDS + _LEAVES] = leaves

    def steps(self) -> list[tuple[int, int]]:
        """Return the step of each rank and its leaves, after all have met."""
        lines = range(0, self._ranks * _WORDS, _WORDS)
        return [(self._words[at + _STEP], self._words[at + _LEAVES]) for at in lines]

    def give_up(self, lost: int | None = None) -> None:
        """Tell the others that this rank will not come, because of its own error or because rank `lost` is lost."""
        self._words[self._rank * _WORDS + _GAVE_UP] = 1 + (self._rank if lost is None else lost)
        futex.wake(self._address + self._rank * LINE_BYTES)

    def meet(self) -> None:
        """Return when all ranks have come here. Raises RankLost if one of them does not."""
        self.arrive()
        self.wait()

    def arrive(self) -> None:
        """Say that this rank has come, without waiting for the others."""
        self._count += 1
        own = self._address + self._rank * LINE_BYTES
        # Twice: the first is the barrier between what was written and the count, the second wakes who sleeps already.
        futex.wake(own)
        self._words[self._rank * _WORDS + _CAME] = self._count
        futex.wake(own)

    def wait(self) -> None:
        """Return when all ranks have come as often as this one. Raises RankLost if one of them does not."""
        for rank in range(self._ranks):
            if rank != self._rank:
                self._await(rank)
        # The barrier between the counts and what is read next.
        futex.wake(self._address + self._rank * LINE_BYTES)

    def close(self) -> None:
        """Close the descriptors of the other ranks' processes."""
        for descriptor in self._processes.values():
            os.close(descriptor)
        self._processes.clear()

    def _came(self, rank: int) -> int:
        return self._words[rank * _WORDS + _CAME]

    def _await(self, rank: int) -> None:
        """Wait for one rank: look, then sleep by turns of a millisecond."""
        for _ in range(_LOOKS):
            if self._came(rank) >= self._count:
                return
        begin = looked = time.monotonic()
        stopped_since: float | None = None
        while (seen := self._came(rank)) < self._count:
            futex.wait(self._address + rank * LINE_BYTES, seen, _SLEEP_S)
            if self._waiting is not None:
                self._waiting()
            if self._is_gone(rank):
                return
            now = time.monotonic()
            if now - looked >= _LOOK_AT_PROCESSES_S:
                looked = now
                is_stopped = _state_of(self._process(rank)) in ("T", "t")
                stopped_since = (stopped_since or now) if is_stopped else None
            self._check_time(rank, now - begin, now - stopped_since if stopped_since is not None else 0.0)

    def _is_gone(self, rank: int) -> bool:
        """Raise RankLost if a rank has ended or given up. Return True if it came before that."""
        lost = rank
        if blamed := self._words[rank * _WORDS + _GAVE_UP]:
            lost = blamed - 1
            why = "gave up after an error of its own" if lost == rank else f"is lost, as rank {rank} has found"
        elif self._has_ended(rank):
            why = f"(process {self._process(rank)}) has ended"
        else:
            return False
        if self._came(rank) >= self._count:
            return True
        raise RankLost(lost, self._step, why)

    def _check_time(self, rank: int, waited_s: float, stopped_s: float) -> None:
        if stopped_s >= STOPPED_S:
            raise RankLost(rank, self._step, f"(process {self._process(rank)}) is stopped by a signal")
        if waited_s >= self._limit_s:
            raise RankLost(rank, self._step, f"has not come for {waited_s:.1f} s, though its process runs")

    def _process(self, rank: int) -> int:
        return self._words[rank * _WORDS + _PROCESS]

    def _has_ended(self, rank: int) -> bool:
        """Return whether the process of a rank has ended. One that has not begun yet, has not."""
        if not (process := self._process(rank)):
            return False
        if rank not in self._processes:
            try:
                self._processes[rank] = os.pidfd_open(process)
            except ProcessLookupError:
                return True
        poll = select.poll()
        poll.register(self._processes[rank], select.POLLIN)
        return bool(poll.poll(0))


def _state_of(process: int) -> str:
    """Return the letter by which Linux shows the state of a process, or "" if there is none."""
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    # The name before it may contain anything, so search from the end.
    return text.rpartition(")")[2].split()[0]
