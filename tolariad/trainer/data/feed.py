"""The feed: batches in an order that depends on (rng_seed, epoch) only. Every kind of data becomes a feed.

Promises: resumed at any position, a feed yields the batches that it would have yielded without the interruption. No
feed changes the process-wide generators. A batch counts when it is used, not when it is fetched.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch

from tolariad.trainer.data.randomness import derived_seed


class Feed(Protocol):
    """The data of the training loop."""

    batches: int | None
    """Batches in an epoch, including a last partial one; None if the data has no length."""

    note: str
    """A hint for the user before the run begins, or the empty string."""

    def epoch(self, epoch: int, start: int) -> Iterator[Any]:
        """Yield the batches of `epoch` after the first `start`."""
        ...

    def can_stop_at(self, batch: int) -> bool:
        """Return whether an epoch can be resumed after this many of its batches."""
        ...

    def state(self) -> Any:
        """Return the state that a checkpoint needs in addition to epoch and batch, or None."""
        ...

    def load_state(self, state: Any) -> None:
        """Restore what `state` returned. The next call must be `epoch`."""
        ...


class TensorFeed:
    """Tensors of equal length in memory, indexed batch by batch: ten times cheaper than a DataLoader."""

    note = ""

    def __init__(self, tensors: Sequence[torch.Tensor], batch_size: int, rng_seed: int | None) -> None:
        """`rng_seed` None: do not shuffle. Raises ValueError if the tensors differ in length or are empty."""
        lengths = {len(tensor) for tensor in tensors}
        if len(lengths) != 1 or 0 in lengths:
            raise ValueError(f"the tensors of a data set must have the same length, at least 1, not {sorted(lengths)}")
        self._tensors = tuple(tensors)
        # Select rows with index_select: a third of the time of indexing, which is used for other memory layouts.
        self.is_on_host = all(t.device.type == "cpu" for t in tensors)
        self._selects = self.is_on_host and all(t.layout is torch.strided and t.is_contiguous() for t in tensors)
        self._batch_size = batch_size
        self._rng_seed = rng_seed
        self._samples = lengths.pop()
        self.batches: int | None = -(-self._samples // batch_size)

    def epoch(self, epoch: int, start: int) -> Iterator[tuple[torch.Tensor, ...]]:
        """Yield tuples of slices, batch dimension first."""
        order = self._order(epoch)
        size = self._batch_size
        for first in range(start * size, self._samples, size):
            if order is None:
                yield tuple(tensor[first : first + size] for tensor in self._tensors)
            elif self._selects:
                indices = order[first : first + size]
                yield tuple([tensor.index_select(0, indices) for tensor in self._tensors])
            else:
                indices = order[first : first + size]
                yield tuple(tensor[indices] for tensor in self._tensors)

    def _order(self, epoch: int) -> torch.Tensor | None:
        if self._rng_seed is None:
            return None
        # Use a separate generator: shuffling must not advance the one that dropout draws from.
        generator = torch.Generator().manual_seed(derived_seed(self._rng_seed, "order", epoch))
        return torch.randperm(self._samples, generator=generator)

    def can_stop_at(self, batch: int) -> bool:
        """Return True: an epoch can be resumed anywhere."""
        return batch >= 0

    def state(self) -> None:
        """Return None: the order follows from seed and epoch."""
        return

    def load_state(self, state: Any) -> None:
        """Do nothing: there is no state."""


def to_device(batch: Any, device: torch.device) -> Any:
    """Return `batch` with every tensor in it (in tuples, lists, dicts) moved to `device`."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(item, device) for item in batch))
    if isinstance(batch, (tuple, list)):
        return type(batch)([to_device(item, device) for item in batch])
    if isinstance(batch, dict):
        return {key: to_device(item, device) for key, item in batch.items()}
    return batch
