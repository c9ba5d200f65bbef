"""A rank's share of the batches of an epoch: all ranks go through one list, and each reads its own batches only.

Promises: the list is that of one process, so a position in it means the same on every rank. Each batch belongs to one
rank. A rank that has none of the last, smaller group reads one of it too, which does not count.
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple, Protocol


class Elsewhere(enum.Enum):
    """Stands for a batch of the list that another rank reads."""

    BATCH = "a batch of another rank"


ELSEWHERE: Final = Elsewhere.BATCH


class Sharing(Protocol):
    """Which batches of an epoch's list a rank reads."""

    @property
    def times(self) -> int:
        """A step takes so many times `accumulate` batches of the list."""

    @property
    def drawn_together(self) -> int:
        """The indices of so many batches are drawn before one of them is read; 0: each when the loader asks for it."""

    def takes(self, number: int, batches: int) -> bool:
        """Return whether this rank reads batch `number`, from 0, of an epoch of so many."""

    def before(self, number: int, batches: int) -> int:
        """Return how many of the first `number` batches this rank reads."""

    def span(self, own: int) -> int:
        """Return how many batches of the list have been drawn, at most, where so many of its own were taken ahead."""


class Share(NamedTuple):
    """The share of `rank` among `ranks`; each takes `accumulate` batches in a step."""

    rank: int
    ranks: int
    accumulate: int = 1

    @property
    def drawn_together(self) -> int:
        """Each is drawn when the loader asks for it."""
        return 0

    @property
    def times(self) -> int:
        """A step takes the batches of all ranks."""
        return self.ranks

    def takes(self, number: int, batches: int) -> bool:
        """Return whether this rank reads batch `number`, from 0, of an epoch of so many."""
        return number % self.ranks == self.rank or number == self._again(batches)

    def before(self, number: int, batches: int) -> int:
        """Return how many of the first `number` batches this rank reads."""
        again = self._again(batches)
        return -(-(number - self.rank) // self.ranks) + (again is not None and again < number)

    def span(self, own: int) -> int:
        """Return how many batches of the list have been drawn, at most, where so many of its own were taken ahead."""
        return own * self.ranks

    def _again(self, batches: int) -> int | None:
        """Return the batch of another rank that this one reads, because it has none of the last group; or None."""
        size = self.ranks * self.accumulate
        begin = (batches - 1) // size * size
        return begin if begin + self.rank >= batches else None


ALL: Final = Share(0, 1)
