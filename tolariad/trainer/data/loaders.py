"""Make a feed of any data: a data set, a loader of torch's or of the user's own, any other iterable.

Promises: the batches are the same from any position, with any number of workers and any prefetch depth. A resumed epoch
of a map-style data set skips indices without loading their items.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from tolariad.core import messages as m
from tolariad.trainer.data import findings
from tolariad.trainer.data.carriers import iterator_seed
from tolariad.trainer.data.feed import Feed, Return, TensorFeed, length_of
from tolariad.trainer.data.fingerprint import of_dataset
from tolariad.trainer.data.iterated import IteratedFeed
from tolariad.trainer.data.leaves import same
from tolariad.trainer.data.order import DrawnSoFar, Fetching, drawn_whole
from tolariad.trainer.data.randomness import derived_seed, preserved_host_rng, seed_host
from tolariad.trainer.data.share import Sharing
from tolariad.trainer.data.sources import RebuiltSource, Source, SwappedSource, is_stateful, overridden, reads_ahead
from tolariad.trainer.data.walk import Place, walk
from tolariad.trainer.errors import SetupRefused

_LOADS_AGAIN: Final = (
    "this data can only be iterated over: a resume within an epoch loads the batches before it again, and drops them"
)


class LoaderFeed(IteratedFeed):
    """A DataLoader of torch's own machinery over a map-style data set."""

    def __init__(self, loader: DataLoader[Any], rng_seed: int) -> None:
        super().__init__(loader, rng_seed, [_source_of(loader, rng_seed)], Return.BY_INDEX)

    def shared_out(self, share: Sharing) -> bool:
        """Read a rank's share only: the sampler draws the whole order, and the items of others are not read."""
        if self.batches is None:
            return False
        self.share_of = share
        for source in self._sources:
            source.share_out(share, self.batches)
        return True

    def order_digest(self, batches: int) -> int:
        """Return a digest of the indices that were drawn for these batches, and for those before since the start."""
        return self._sources[0].order.digest_up_to(batches)

    def state(self) -> Any:
        """Return what a resume needs. With exact sums say if reading an item changes the data set: ranks differ then.

        Their number is that of each start, so rank 0's state is that of all.
        """
        state = super().state()
        if self.share_of.drawn_together and state["epoch"] and self._resumed is None:
            begun, now = self._begin[1], state["now"][1]
            if moved := [path for path in now if not same(now[path], begun.get(path))]:
                self.found(findings.moved_by_reading(moved))
        return state

    def rows(self, epoch: int, batch: int) -> list[Any] | None:
        """Return the indices of a batch. The sampler may hold an order of its own, so every epoch before is drawn."""
        (source,) = self._sources
        with preserved_host_rng():
            for one in range(1, epoch + 1):
                self._tell_epoch(one)
                source.begin_drawing(one)
                source.begin(one)
                if one < epoch:
                    drawn_whole(source.order)
            drawn = next(islice(source.order.draws(), batch - 1, None), None)
        if drawn is None:
            return None
        return [drawn.value] if source.fetching is Fetching.INDEX else list(drawn.value)

    def item(self, row: Any) -> Any:
        """Return one item of the data set."""
        return self._data.dataset[row]

    def fingerprint(self) -> m.DataPrint:
        """Return the fingerprint of the data set. One that keeps a state is not read: that could change its state."""
        return _print_of(self._data)


class IterableFeed(IteratedFeed):
    """Data that are iterated over: a stream, a loader with ways of its own, an object of the user's.

    If they have `state_dict`, they come back to a place by that.
    """

    def __init__(self, data: Any, rng_seed: int) -> None:
        back, keeper = _way_back(data)
        sources = [_source_of(data, rng_seed)] if isinstance(data, DataLoader) else _sources_within(data, rng_seed)
        super().__init__(data, rng_seed, sources, back, keeper)
        self.note = _LOADS_AGAIN if back is Return.BY_LOADING else ""

    def fingerprint(self) -> m.DataPrint:
        """Return the length only, unless it is a map-style data set. Reading items could change what comes later."""
        if isinstance(self._data, DataLoader):
            return _print_of(self._data)
        return m.DataPrint(length=length_of(self._data))

    def _own(self) -> Any:
        return self._keeper.state_dict() if self._keeper is not None else None

    def _was_at_end(self, resumed: dict[str, Any]) -> bool:
        # A stream that ended within its last batch has begun anew in its state.
        return self._keeper is not None and any(DrawnSoFar(*one).ended for one in resumed["sources"])

    def _load_own(self, state: Any) -> None:
        if self._keeper is not None and state is not None:
            self._keeper.load_state_dict(state)


class AskedFeed(IterableFeed):
    """A loader of torchdata's. Asked for its state before it has an iterator, it makes one, and draws for it."""

    def _own(self) -> Any:
        with preserved_host_rng():
            # As when the iterator is made: if the loader makes it now, it must be the same one.
            seed_host(iterator_seed(self._rng_seed, max(1, self._epoch), 0))
            return super()._own()


class NodesFeed(AskedFeed):
    """torchdata's Loader of nodes. Brought back by its state, it reads the next batch when its iterator is made."""

    _comes_back = False

    def _load_own(self, state: Any) -> None:
        super()._load_own(state)
        self._comes_back = state is not None

    def _iterator_over(self, epoch: int) -> Iterator[Any]:
        if not self._comes_back:
            return super()._iterator_over(epoch)
        self._comes_back, loader = False, self._data
        seed_host(derived_seed(self._rng_seed, "batch", epoch, self._taken + 1))
        # At its end it would begin anew: right between two epochs, and wrong after an epoch's last batch.
        own = loader.restart_on_stop_iteration
        vars(loader).update(restart_on_stop_iteration=not self._taken)
        try:
            return iter(loader)
        finally:
            vars(loader).update(restart_on_stop_iteration=own)


class StatefulFeed(AskedFeed):
    """torchdata's StatefulDataLoader. Its state is used only if the data have one: else the order says the place."""

    def state(self) -> Any:
        """Return what a resume needs; None between two epochs if nothing has moved."""
        state = super().state()
        is_empty = self._keeper is None and not state["epoch"] and not any(state["now"])
        return None if is_empty else state

    def _was_at_end(self, resumed: dict[str, Any]) -> bool:
        # Restored after the last batch, new workers would give the whole epoch again.
        in_workers = self._keeper is not None and self._data.num_workers
        found = list(_ends_in(resumed["own"])) if in_workers else []
        is_over = bool(found) and all(found)
        if is_over:
            self._data.next_iter_state = None
        return is_over


def _ends_in(state: Any) -> Iterator[bool]:
    """Yield for each worker in a state of a StatefulDataLoader whether its stream has ended."""
    for key, value in state.items() if isinstance(state, dict) else ():
        if key == "fetcher_ended":
            yield bool(value)
        yield from _ends_in(value)


def _has_state(data: Any) -> bool:
    return hasattr(data, "state_dict") and hasattr(data, "load_state_dict")


def _way_back(data: Any) -> tuple[Return, Any]:
    """Return how a resume comes to its place, and the object that says by `state_dict` where that is."""
    if is_stateful(data) and not isinstance(data.dataset, IterableDataset) and not _has_state(data.dataset):
        return Return.BY_INDEX, None
    if _has_state(data):
        return Return.BY_STATE, data
    # A stream in this process.
    is_here = isinstance(data, DataLoader) and not data.num_workers and isinstance(data.dataset, IterableDataset)
    if is_here and _has_state(data.dataset):
        return Return.BY_STATE, data.dataset
    return Return.BY_LOADING, None


def _source_of(loader: DataLoader[Any], rng_seed: int) -> Source:
    return SwappedSource(loader, rng_seed) if overridden(loader) else RebuiltSource(loader, rng_seed)


def _sources_within(data: Any, rng_seed: int) -> list[Source]:
    """Return the loaders that an object holds. What a data set holds is its own affair."""
    found = [met.value for met in walk([Place("data", data)], limit=500) if isinstance(met.value, DataLoader)]
    closed = {id(one.dataset) for one in found}
    outer = [met.value for met in walk([Place("data", data)], closed, limit=500)]
    loaders = [one for one in outer if isinstance(one, DataLoader)]
    return [SwappedSource(one, rng_seed, number) for number, one in enumerate(loaders)]


def _print_of(loader: DataLoader[Any]) -> m.DataPrint:
    dataset = loader.dataset
    length = length_of(dataset)
    if isinstance(dataset, IterableDataset) or length is None or hasattr(dataset, "state_dict"):
        return m.DataPrint(length=length)
    return of_dataset(dataset, loader)


def feed_of(data: Any, *, batch_size: int, workers: int, rng_seed: int, shuffle: bool) -> Feed:
    """Return the feed for a task's data. Shuffle it if wanted, unless the task's loader decides the order.

    Raises SetupRefused.
    """
    tensors = _tensors_of(data)
    if tensors is not None:
        return TensorFeed(tensors, batch_size, rng_seed if shuffle else None)
    if isinstance(data, DataLoader):
        return _from_loader(data, rng_seed)
    if _is_map_style(data):
        return LoaderFeed(DataLoader(data, batch_size, shuffle, num_workers=workers), rng_seed)
    return _from_iterable(data, rng_seed)


def _tensors_of(data: Any) -> Sequence[torch.Tensor] | None:
    """Return the tensors of data that consists of tensors in memory; None for anything else."""
    if type(data) is TensorDataset:
        return data.tensors
    if isinstance(data, torch.Tensor):
        return (data,)
    if isinstance(data, (tuple, list)) and data and all(isinstance(item, torch.Tensor) for item in data):
        return tuple(data)
    # A list of arrays may be a data set, item by item. A tuple of them are the columns of one, as of tensors.
    if isinstance(data, tuple) and data and all(isinstance(item, (torch.Tensor, np.ndarray)) for item in data):
        return tuple(item if isinstance(item, torch.Tensor) else _of_array(item) for item in data)
    return None


def _of_array(array: np.ndarray[Any, Any]) -> torch.Tensor:
    """Return an array as a tensor, in its memory if torch can use that. Raises SetupRefused if it holds no numbers."""
    if array.dtype.kind not in "biufc":
        raise SetupRefused(f"the task's data: an array of {array.dtype} has no tensor; give numbers")
    return torch.from_numpy(array if array.flags.c_contiguous and array.flags.writeable else array.copy())


def _is_map_style(data: Any) -> bool:
    if isinstance(data, IterableDataset):
        return False
    return (hasattr(data, "__getitem__") or hasattr(data, "__getitems__")) and hasattr(data, "__len__")


def _from_loader(loader: DataLoader[Any], rng_seed: int) -> Feed:
    if is_stateful(loader):
        return StatefulFeed(loader, rng_seed)
    if isinstance(loader.dataset, IterableDataset) or overridden(loader) or _has_state(loader):
        return IterableFeed(loader, rng_seed)
    return LoaderFeed(loader, rng_seed)


def _from_iterable(data: Any, rng_seed: int) -> Feed:
    if isinstance(data, IterableDataset):
        data = DataLoader(data, batch_size=None)
    if not isinstance(data, Iterable):
        kind = f"{type(data).__module__}.{type(data).__qualname__}"
        raise SetupRefused(f"the task's data is a {kind}; give a Dataset, a tuple of tensors or arrays, or a loader")
    if isinstance(data, Iterator) and not _begins_anew(data):
        raise SetupRefused("the task's data can be iterated over only once; give an object whose iter() starts again")
    return (NodesFeed if reads_ahead(data) else IterableFeed)(data, rng_seed)


def _begins_anew(data: Iterator[Any]) -> bool:
    """Return whether an iterator's `__iter__` does something: an object around a loader begins its next epoch there."""
    code = getattr(type(data).__iter__, "__code__", None)
    return code is not None and code.co_code != Iterator.__iter__.__code__.co_code
