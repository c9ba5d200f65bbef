"""The batches that a loop of the user's own has before it, with their number for a progress bar."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


class Batches(Iterator[Any]):
    """The batches that are left of an epoch."""

    def __init__(self, batches: Iterator[Any], left: int | None) -> None:
        self._batches, self._left = batches, left

    def __next__(self) -> Any:
        """Return the next batch."""
        return next(self._batches)

    def __len__(self) -> int:
        """Return how many batches there were left at the beginning. Raises TypeError if only the data tells."""
        if self._left is None:
            raise TypeError("the data of this run has no length")
        return self._left
