"""The feed: batches in an order that depends on (rng_seed, epoch) only. Every kind of data becomes a feed.

Promises: resumed at any position, a feed yields the batches that it would have yielded without the interruption. No
feed changes the process-wide generators. A batch counts when it is used, not when it is fetched.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from tolariad.core import messages as m
from tolariad.trainer.data.fingerprint import of_items
from tolariad.trainer.data.randomness import derived_seed
from tolariad.trainer.data.share import ALL, ELSEWHERE, Sharing


class Bearing(enum.Enum):
    """The consequence of a finding about the data."""

    INEXACT = "a resumed run may see other data"
    NOTED = "the data are not as the user may expect"


class Finding(NamedTuple):
    """Something about the data that the user must know, as a sentence."""

    bearing: Bearing
    words: str


class Return(enum.Enum):
    """How a resume comes back to its place in an epoch."""

    BY_INDEX = "draw the indices again, load nothing"
    BY_LOADING = "load the batches again, and drop them"
    BY_STATE = "the data have a state of their own"


class Feed(ABC):
    """The data of the training loop.

    A feed that has no state of its own, and can stop anywhere, overrides `epoch` only.
    """

    batches: int | None
    """Batches in an epoch, including a last partial one; None if the data has no length."""

    note = ""
    """A hint for the user before the run begins, or the empty string."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        """The findings since they were last taken."""
        self._beat: Callable[[], None] = lambda: None
        self.share_of: Sharing = ALL
        """Which of the batches are read here. In place of the others `epoch` yields `ELSEWHERE`."""

    @abstractmethod
    def epoch(self, epoch: int, start: int) -> Iterator[Any]:
        """Yield the batches of `epoch` after the first `start`."""

    def can_stop_at(self, batch: int) -> bool:
        """Return whether an epoch can be resumed after this many of its batches."""
        return batch >= 0

    def state(self) -> Any:
        """Return the state that a checkpoint needs in addition to seed, epoch and batch, or None."""
        return None

    def rows(self, epoch: int, batch: int) -> list[Any] | None:  # noqa: ARG002 - the signature of those that know
        """Return the indices of batch `batch`, from 1; None if the data are not read by index.

        Only for a feed that yields nothing else: it may draw all epochs up to this one.
        """
        return None

    def item(self, row: Any) -> Any:
        """Return one item of the data by its index. Raises LookupError if they are not read by index."""
        raise LookupError(row)

    def end_workers(self) -> None:  # noqa: B027 - most feeds have none
        """End the workers that wait for the next epoch. It starts new ones."""

    def fingerprint(self) -> m.DataPrint:
        """Return the fingerprint of the data. Data that can only be iterated over has no hashes of items."""
        return m.DataPrint()

    def shared_out(self, share: Sharing) -> bool:  # noqa: ARG002 - the signature of those that can
        """Read a rank's share only, from the next epoch on. Return False if these data cannot be shared out so."""
        return False

    def is_elsewhere(self, number: int) -> bool:
        """Return whether another rank reads batch `number`, from 0, of an epoch."""
        batches, share = self.batches or 0, self.share_of
        return share is not ALL and number < batches and not share.takes(number, batches)

    def order_digest(self, batches: int) -> int:  # noqa: ARG002 - the signature of those that know
        """Return a digest of the order of the epoch up to so many batches, since it was begun here; 0: none is known.

        Of data whose steps are drawn together; asked once for each step.
        """
        return 0

    def load_state(self, state: Any) -> None:  # noqa: B027 - most feeds have no state
        """Restore what `state` returned. The next call must be `epoch`."""

    def share(self, training: Iterable[Any]) -> None:  # noqa: B027 - most feeds hold no generator
        """Leave alone what the training holds too: generators of the model, the optimizers, the task."""

    def check(self, ignored: Sequence[str]) -> None:  # noqa: B027 - tensors are the same whenever they are read
        """Draw twice what a resume would have to draw again, and add what differs to `findings`.

        `ignored`: names of fields of an item that nobody trains on.
        """

    @contextmanager
    def untouched(self) -> Iterator[None]:
        """In the block the data may be read. Afterwards what decides their order is as it was."""
        yield

    def beat_by(self, beat: Callable[[], None]) -> None:
        """Call this while batches are loaded again, before the first one of a resumed epoch."""
        self._beat = beat

    def take_findings(self) -> list[Finding]:
        """Return what was found since this was last called."""
        found, self.findings = self.findings, []
        return found

    def found(self, finding: Finding) -> None:
        """Add a finding, once."""
        if finding not in self.findings:
            self.findings.append(finding)


class TensorFeed(Feed):
    """Tensors of equal length in memory, indexed batch by batch: ten times cheaper than a DataLoader."""

    def __init__(self, tensors: Sequence[torch.Tensor], batch_size: int, rng_seed: int | None) -> None:
        """`rng_seed` None: do not shuffle. Raises ValueError if the tensors differ in length or are empty."""
        super().__init__()
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
        self.batches = -(-self._samples // batch_size)

    def shared_out(self, share: Sharing) -> bool:
        """Read a rank's share only."""
        self.share_of = share
        return True

    def epoch(self, epoch: int, start: int) -> Iterator[Any]:
        """Yield tuples of slices, batch dimension first."""
        order = self._order(epoch)
        size = self._batch_size
        for first in range(start * size, self._samples, size):
            if self.is_elsewhere(first // size):
                yield ELSEWHERE
                continue
            rows = slice(first, first + size) if order is None else order[first : first + size]
            if self._selects and isinstance(rows, torch.Tensor):
                yield tuple([tensor.index_select(0, rows) for tensor in self._tensors])
            else:
                yield tuple(tensor[rows] for tensor in self._tensors)

    def rows(self, epoch: int, batch: int) -> list[Any]:
        """Return the indices of a batch."""
        order, first = self._order(epoch), (batch - 1) * self._batch_size
        rows = range(self._samples) if order is None else order.tolist()
        return list(rows[first : first + self._batch_size])

    def item(self, row: Any) -> Any:
        """Return one row of each tensor."""
        return tuple(tensor[row] for tensor in self._tensors)

    def fingerprint(self) -> m.DataPrint:
        """Return the fingerprint of the rows."""
        return of_items(self._samples, lambda row: [tensor[row] for tensor in self._tensors])

    def _order(self, epoch: int) -> torch.Tensor | None:
        if self._rng_seed is None:
            return None
        # Use a separate generator: shuffling must not advance the one that dropout draws from.
        generator = torch.Generator().manual_seed(derived_seed(self._rng_seed, "order", epoch))
        return torch.randperm(self._samples, generator=generator)


def length_of(data: Any) -> int | None:
    """Return the number of batches, or None if the data have no length, or do not know it yet.

    Lightning's CombinedLoader raises RuntimeError before its first iterator.
    """
    try:
        return len(data)
    except Exception:  # noqa: BLE001 - a length of the user's own may raise anything, and nobody needs it
        return None


def to_device(batch: Any, device: torch.device) -> Any:
    """Return `batch` with every tensor in it (in tuples, lists, dicts) moved to `device`.

    An object of another kind moves itself if it has a method `to`, such as the batches of transformers.
    """
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(item, device) for item in batch))
    if isinstance(batch, (tuple, list)):
        return type(batch)([to_device(item, device) for item in batch])
    if isinstance(batch, dict):
        return {key: to_device(item, device) for key, item in batch.items()}
    moves = getattr(batch, "to", None)
    return moves(device) if callable(moves) else batch
