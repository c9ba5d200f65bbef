"""The group page: a memory file that all ranks of a group map, so that a step costs them no collective of its own.

Each rank writes lines, which hold its numbers of a step, and rank 0 writes words, which say what all do next. Both
belong to a *point*: a place of training that all ranks come to in the same order (`tolariad/channel/points.py`).

Invariants: each eight aligned bytes have one writer. A line holds the exclusive or of its values and its point, so that
a store that becomes visible late is never taken for a line. A word, the count of its orders and its point are one
value. Only the invariants of the points keep a line from being overwritten before all have read it.
"""

from __future__ import annotations

import ctypes
import enum
import fcntl
import mmap
import os
from collections.abc import Callable
from typing import Final, NamedTuple

from tolariad.channel import futex

_MAGIC: Final = 0x31_50_55_4F_52_47_4C_54  # "TLGROUP1", little-endian
# Lines and words of so many points are kept: a rank is at most one point ahead of another (points.py).
SLOTS: Final = 4
# A line has two cache lines of its own: two ranks never write to the same one.
_LINE_WORDS: Final = 16
_HEAD_WORDS: Final = 64
_W_MAGIC, _W_RANKS = range(2)
_W_BELL: Final = 16
_W_WORDS: Final = 32
# Of a rank: its bell, its last sign of life, whether it sleeps, its process, its times, how far it has come, and its
# collectives. Then come its lines.
_R_BELL, _R_ALIVE, _R_ASLEEP, _R_PID, _R_TIMES = range(5)
_R_PROGRESS, _R_COLLECTIVES = 8, 9
# How many marks there may be between two points.
_MARKS_BITS: Final = 20
_RANK_WORDS: Final = _LINE_WORDS * (SLOTS + 1)
_LOOKS: Final = 100
_LOW: Final = 0xFFFF_FFFF
_POINT: Final = 0xFF_FFFF


class Word(enum.IntEnum):
    """What rank 0 says at a point. After `OBEY` another word of the same point follows.

    `GO`: leave the point. `GO_QUIETLY`: the same, and the boundary after the update has no orders.
    """

    OBEY = 1
    GO = 2
    GO_QUIETLY = 3


class Line(NamedTuple):
    """The numbers of one rank at a point: those of its step, or zeros.

    `rates`, `data`: digests of the learning rates and of the batches. `place`: the number of the batch in the epoch.
    """

    loss: float = 0.0
    norm: float = 0.0
    overflow: float = 0.0
    step: int = 0
    place: int = 0
    rates: int = 0
    data: int = 0


class Times(NamedTuple):
    """What a rank has measured of its timed steps: ns of its own work and of waiting, and the samples of its step."""

    pid: int
    compute: int
    wait: int
    steps: int
    samples: int


class GroupPage:
    """The page of one group. Rank 0 calls `create`, the others `attach`."""

    def __init__(self, descriptor: int, ranks: int, rank: int = 0) -> None:
        self.descriptor, self.ranks, self._rank = descriptor, ranks, rank
        self._begun: Callable[[], int] = lambda: 0
        self._sleepers = [_asleep_of(other) for other in range(ranks) if other != rank]
        self._map = mmap.mmap(descriptor, _bytes_of(ranks))
        self._words = memoryview(self._map).cast("Q")
        self._doubles = memoryview(self._map).cast("d")
        self._anchor = ctypes.c_char.from_buffer(self._map)
        self._address = ctypes.addressof(self._anchor)
        if rank:
            self._words[_HEAD_WORDS + rank * _RANK_WORDS + _R_PID] = os.getpid()

    @classmethod
    def create(cls, ranks: int) -> GroupPage:
        """Make the page of a new group."""
        descriptor = os.memfd_create("tolaria-group", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(descriptor, _bytes_of(ranks))
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        page = cls(descriptor, ranks)
        page._words[_W_RANKS] = ranks
        page._words[_HEAD_WORDS + _R_PID] = os.getpid()
        page._words[_W_MAGIC] = _MAGIC
        return page

    @classmethod
    def attach(cls, descriptor: int, rank: int) -> GroupPage:
        """Map the page that rank 0 has passed to this rank. Raises ValueError if the descriptor is no group page."""
        with mmap.mmap(descriptor, mmap.PAGESIZE) as head:
            magic, ranks = (int.from_bytes(head[at * 8 : at * 8 + 8], "little") for at in (_W_MAGIC, _W_RANKS))
        if magic != _MAGIC:
            raise ValueError(f"descriptor {descriptor} is not a group page of tolaria")
        return cls(descriptor, ranks, rank)

    def close(self) -> None:
        """Unmap and close."""
        del self._anchor
        self._words.release()
        self._doubles.release()
        self._map.close()
        os.close(self.descriptor)

    # -- lines ---------------------------------------------------------------------------------------------------------

    def write_line(self, rank: int, point: int, line: Line) -> None:
        """Write the line of this rank. Only that rank calls this."""
        at, words, doubles = self._line_at(rank, point), self._words, self._doubles
        doubles[at + 1], doubles[at + 2], doubles[at + 3], words[at + 4] = line[:4]
        words[at + 5], words[at + 6], words[at + 7] = line[4:]
        words[at] = point ^ words[at + 1] ^ words[at + 2] ^ words[at + 3] ^ line[3] ^ line[4] ^ line[5] ^ line[6]
        words[_HEAD_WORDS + rank * _RANK_WORDS + _R_PROGRESS] = point << _MARKS_BITS
        self._ring(_bell_of(rank))

    def line(self, rank: int, point: int) -> Line | None:
        """Return the line of a rank at this point; None if it is not there yet."""
        at, words, doubles = self._line_at(rank, point), self._words, self._doubles
        step, place, rates, data = words[at + 4], words[at + 5], words[at + 6], words[at + 7]
        if words[at] ^ words[at + 1] ^ words[at + 2] ^ words[at + 3] ^ step ^ place ^ rates ^ data != point:
            return None
        return Line(doubles[at + 1], doubles[at + 2], doubles[at + 3], step, place, rates, data)

    def wait_for_line(self, rank: int, point: int, limit_s: float) -> None:
        """Return when the line is there, or after about `limit_s`."""
        words, bell = self._words, _bell_of(rank)
        # Read the bell before the line: if it rings after that, the system lets nobody sleep.
        rung = words[bell]
        if self.line(rank, point) is None:
            for _ in range(_LOOKS):
                if words[bell] != rung:
                    return
            self._sleep(bell, rung, limit_s)

    @staticmethod
    def _line_at(rank: int, point: int) -> int:
        return _HEAD_WORDS + rank * _RANK_WORDS + (1 + point % SLOTS) * _LINE_WORDS

    # -- words ---------------------------------------------------------------------------------------------------------

    def write_word(self, point: int, word: Word, orders: int) -> None:
        """Rank 0 only. Say `word` at this point; `orders`: how many of the group's list may be obeyed."""
        self._words[_W_WORDS + point % SLOTS] = (point & _POINT) << 40 | orders << 8 | word
        self._ring(_W_BELL)

    def word(self, point: int) -> tuple[Word, int] | None:
        """Return the newest word of this point, with the count of orders; None if there is none yet."""
        value = self._words[_W_WORDS + point % SLOTS]
        return (Word(value & 0xFF), value >> 8 & _LOW) if value >> 40 == point & _POINT else None

    @property
    def words_said(self) -> int:
        """How many words were ever written. Read it before `word`, and give it to `wait_for_word`."""
        return self._words[_W_BELL]

    def wait_for_word(self, heard: int, limit_s: float) -> None:
        """Return when more than `heard` words were written, or after about `limit_s`."""
        words = self._words
        for _ in range(_LOOKS):
            if words[_W_BELL] != heard:
                return
        self._sleep(_W_BELL, heard, limit_s)

    # -- signs of life -------------------------------------------------------------------------------------------------

    def beat(self, rank: int, mono_ns: int) -> None:
        """Record a sign of life of this rank, and its collectives. One thread of that rank calls this."""
        at, words = _HEAD_WORDS + rank * _RANK_WORDS, self._words
        words[at + _R_COLLECTIVES] = self._begun()
        words[at + _R_ALIVE] = mono_ns

    def count_by(self, begun: Callable[[], int]) -> None:
        """Show with each sign of life how many collectives this rank has begun. Any thread may call `begun`."""
        self._begun = begun

    def alive_ns(self, rank: int) -> int:
        """Return the time of the last sign of life of a rank, by CLOCK_MONOTONIC; 0 before the first one."""
        return self._words[_HEAD_WORDS + rank * _RANK_WORDS + _R_ALIVE]

    # -- progress ------------------------------------------------------------------------------------------------------

    def mark(self) -> None:
        """Record that this rank begins something for which it may have to wait for the others.

        All ranks make the same marks between two points. So one that has made fewer is still at work of its own.
        """
        self._words[_HEAD_WORDS + self._rank * _RANK_WORDS + _R_PROGRESS] += 1

    @property
    def progress(self) -> tuple[int, ...]:
        """How far each rank has come: a number that only grows, and is equal if the ranks are at the same place.

        Of two ranks with the same marks the one that has begun fewer collectives is behind: it is still within its own
        backward pass, and the other one waits there for its gradients.
        """
        marks, begun = (
            self._words[_HEAD_WORDS + one : _HEAD_WORDS + one + self.ranks * _RANK_WORDS : _RANK_WORDS]
            for one in (_R_PROGRESS, _R_COLLECTIVES)
        )
        return tuple(one << 64 | other for one, other in zip(marks, begun, strict=True))

    # -- times ---------------------------------------------------------------------------------------------------------

    def write_times(self, times: tuple[int, int, int, int]) -> None:
        """Show the times of this rank: compute, wait, steps, samples."""
        at, words = _HEAD_WORDS + self._rank * _RANK_WORDS + _R_TIMES, self._words
        words[at], words[at + 1], words[at + 2], words[at + 3] = times

    def times(self, rank: int) -> Times:
        """Return the times of a rank. They may be of two steps, if the rank writes at this moment."""
        at, words = _HEAD_WORDS + rank * _RANK_WORDS + _R_TIMES, self._words
        return Times(*words[at - 1 : at + 4])

    # -- bells ---------------------------------------------------------------------------------------------------------

    def _ring(self, bell: int) -> None:
        """Wake all who wait for this bell."""
        words = self._words
        words[bell] += 1
        # A rank that falls asleep at this moment is not seen, and sleeps to the end of its short limit.
        for asleep in self._sleepers:
            if words[asleep]:
                futex.wake(self._address + 8 * bell)
                return

    def _sleep(self, bell: int, rung: int, limit_s: float) -> None:
        """Sleep until the bell has rung more than `rung` times, or for `limit_s`."""
        asleep = _asleep_of(self._rank)
        self._words[asleep] = 1
        futex.wait(self._address + 8 * bell, rung, limit_s)
        self._words[asleep] = 0


def _asleep_of(rank: int) -> int:
    return _HEAD_WORDS + rank * _RANK_WORDS + _R_ASLEEP


def _bell_of(rank: int) -> int:
    return _HEAD_WORDS + rank * _RANK_WORDS + _R_BELL


def _bytes_of(ranks: int) -> int:
    size = 8 * (_HEAD_WORDS + ranks * _RANK_WORDS)
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
