"""A rank's share of the batches of an epoch if the sums are exact: its leaves of every step.

Promises: the list is that of one process, and a step takes the same batches of it with any number of ranks. A rank that
has no leaf in an epoch's last step reads nothing of it.
"""

from __future__ import annotations

from typing import NamedTuple

from tolariad.trainer.ranks.exact.order import block


class LeafShare(NamedTuple):
    """The share of `rank` among `ranks` in steps of `leaves` batches."""

    rank: int
    ranks: int
    leaves: int

    @property
    def times(self) -> int:
        """The batches of a step are those of `accumulate`, whatever the number of ranks."""
        return 1

    @property
    def drawn_together(self) -> int:
        """The indices of so many batches are drawn before one of them is read: as in one process, those of a step."""
        return self.leaves

    def takes(self, number: int, batches: int) -> bool:
        """Return whether this rank reads batch `number`, from 0, of an epoch of so many."""
        leaf = number % self.leaves
        return leaf in self._block(number - leaf, batches)

    def before(self, number: int, batches: int) -> int:
        """Return how many of the first `number` batches this rank reads."""
        steps, rest = divmod(number, self.leaves)
        last = self._block(steps * self.leaves, batches)
        return steps * len(block(self.leaves, self.ranks, self.rank)) + len(range(last.start, min(last.stop, rest)))

    def span(self, own: int) -> int:
        """Return how many batches of the list have been drawn, at most, where so many of its own were taken ahead."""
        least = self.leaves // self.ranks
        return (-(-own // least) + 2) * self.leaves

    def _block(self, begin: int, batches: int) -> range:
        """Return the leaves of this rank in the step that begins with batch `begin`."""
        return block(max(0, min(self.leaves, batches - begin)), self.ranks, self.rank)
