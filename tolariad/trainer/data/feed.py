"""Batches in an order that is a function of (rng_seed, epoch): the feed every kind of data is turned into.

Promises: a feed that can be resumed gives, from any position, the batches it would have given without the interruption;
no feed leaves the process-wide generators changed. A batch is counted when it was used, not when it was fetched.
It must not know: models, or what is in a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch

from tolariad.trainer.data.randomness import derived_seed


class Feed(Protocol):
    """Data as the loop sees it."""

    batches: int | None
    """Batches in an epoch, a last partial one counted; None where only the data knows."""

    note: str
    """What a user should know before the run begins; empty where there is nothing."""

    def epoch(self, epoch: int, start: int) -> Iterator[Any]:
        """The batches of `epoch` after the first `start`."""
        ...

    def can_stop_at(self, batch: int) -> bool:
        """Can an epoch be taken up again after this many of its batches?"""
        ...

    def state(self) -> Any:
        """What a checkpoint must hold beside epoch and batch; None for nothing."""
        ...

    def load_state(self, state: Any) -> None:
        """Take up the state that `state` gave; the next call is `epoch`."""
        ...


class TensorFeed:
    """Tensors of equal length in memory, indexed a batch at a time: an order of magnitude cheaper than a DataLoader."""

    note = ""

    def __init__(self, tensors: Sequence[torch.Tensor], batch_size: int, rng_seed: int | None) -> None:
        """`rng_seed` None: in order. Raises ValueError where the tensors differ in length or are empty."""
        lengths = {len(tensor) for tensor in tensors}
        if len(lengths) != 1 or 0 in lengths:
            raise ValueError(f"the tensors of a data set must have one length of at least 1, not {sorted(lengths)}")
        self._tensors = tuple(tensors)
        # The same values in a third of the time; what is laid out otherwise keeps its layout by indexing.
        self.is_on_host = all(t.device.type == "cpu" for t in tensors)
        self._selects = self.is_on_host and all(t.layout is torch.strided and t.is_contiguous() for t in tensors)
        self._batch_size = batch_size
        self._rng_seed = rng_seed
        self._samples = lengths.pop()
        self.batches: int | None = -(-self._samples // batch_size)

    def epoch(self, epoch: int, start: int) -> Iterator[tuple[torch.Tensor, ...]]:
        """Tuples of slices, batch first."""
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
        # A generator of its own: shuffling must not move the one that dropout draws from.
        generator = torch.Generator().manual_seed(derived_seed(self._rng_seed, "order", epoch))
        return torch.randperm(self._samples, generator=generator)

    def can_stop_at(self, batch: int) -> bool:
        """Anywhere."""
        return batch >= 0

    def state(self) -> None:
        """Nothing: the order follows from seed and epoch."""
        return

    def load_state(self, state: Any) -> None:
        """Nothing to take up."""


def to_device(batch: Any, device: torch.device) -> Any:
    """`batch` with every tensor in it (in tuples, lists, dicts) on `device`."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(item, device) for item in batch))
    if isinstance(batch, (tuple, list)):
        return type(batch)([to_device(item, device) for item in batch])
    if isinstance(batch, dict):
        return {key: to_device(item, device) for key, item in batch.items()}
    return batch
