"""Make a feed of any DataLoader or iterable.

A DataLoader over a map-style dataset is rebuilt. By itself it takes its order from the global generator, and its
iterator cannot start at a position. The rebuilt one draws the index batches of an epoch with (rng_seed, epoch). Each
index is sent to the worker together with its epoch, so that the item is loaded under a seed of (rng_seed, epoch,
index).

Promises: the batches are the same from any position, with any number of workers and any prefetch depth. A resumed epoch
skips indices without loading their items.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from typing import Any, Final

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, TensorDataset

from tolariad.core.trainer.words import DataPrint
from tolariad.trainer.data.feed import Feed, TensorFeed
from tolariad.trainer.data.fingerprint import of_dataset
from tolariad.trainer.data.randomness import derived_seed, preserved_host_rng, seed_host
from tolariad.trainer.errors import SetupRefused

_KEPT: Final = (
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "prefetch_factor",
    "persistent_workers",
)
_ONLY_BETWEEN_EPOCHS: Final = (
    "this data can be checkpointed only between epochs. After an interruption the epoch is repeated from its start. "
    "That is exact only if the data comes in the same order again"
)


class SeededDataset(Dataset[Any]):
    """A map-style dataset that loads each item under its own seed. Its keys are (epoch, index)."""

    def __init__(self, inner: Any, rng_seed: int) -> None:
        self._inner = inner
        self._rng_seed = rng_seed

    def __getitem__(self, key: tuple[int, Any]) -> Any:
        # Load items one by one even if the inner dataset has __getitems__. With one seed for a whole batch, an item
        # would depend on its neighbours.
        epoch, index = key
        seed_host(derived_seed(self._rng_seed, "item", epoch, index))
        return self._inner[index]


class _EpochKeys(Sampler[Any]):
    """The keys that the rebuilt loader iterates over. They are set before each epoch; persistent workers stay alive."""

    def __init__(self) -> None:
        self.keys: Sequence[Any] = ()

    def __iter__(self) -> Iterator[Any]:
        return iter(self.keys)

    def __len__(self) -> int:
        return len(self.keys)


class LoaderFeed(Feed):
    """A rebuilt DataLoader over a map-style dataset."""

    def __init__(self, loader: DataLoader[Any], rng_seed: int) -> None:
        self._rng_seed = rng_seed
        self._batched = loader.batch_sampler is not None
        self._sampler: Any = loader.batch_sampler if self._batched else loader.sampler
        self._dataset: Any = loader.dataset
        self._keys = _EpochKeys()
        self._generator = torch.Generator()
        self._loader = self._rebuilt(loader)
        self._ahead: int | None = self._loader.prefetch_factor
        self.batches = len(loader)

    def _rebuilt(self, loader: DataLoader[Any]) -> DataLoader[Any]:
        kept = {name: getattr(loader, name) for name in _KEPT if hasattr(loader, name)}
        if kept["num_workers"] == 0:
            # torch refuses these arguments for a loader without workers.
            kept.pop("prefetch_factor", None)
            kept.pop("multiprocessing_context", None)
        where: dict[str, Any] = (
            {"batch_sampler": self._keys} if self._batched else {"batch_size": None, "sampler": self._keys}
        )
        dataset = SeededDataset(loader.dataset, self._rng_seed)
        return DataLoader(dataset, generator=self._generator, **where, **kept)

    def epoch(self, epoch: int, start: int) -> Iterator[Any]:
        """Yield batches as the loader collates them."""
        self._keys.keys = self._epoch_keys(epoch)[start:]
        # The workers' base seed is drawn from this generator; only worker_init_fn sees it.
        self._generator.manual_seed(derived_seed(self._rng_seed, "workers", epoch))
        persistent: Any = self._loader._iterator  # noqa: SLF001 - torch has no public name for it
        if persistent is not None:
            # Only between two epochs: within one it may have sent more batches to its workers than the new number.
            persistent._prefetch_factor = self._loader.prefetch_factor  # noqa: SLF001 - its copy
        return _preserving(iter(self._loader))

    def fingerprint(self) -> DataPrint:
        """Return the fingerprint of the data set. One that keeps a state is not read: that could change its state."""
        return _print_of(self._dataset, self._loader)

    def end_workers(self) -> None:
        """End persistent workers."""
        self._loader._iterator = None  # noqa: SLF001 - as above

    def load_ahead(self, batches: int | None) -> None:
        """Let each worker load so many batches ahead, from the next epoch on. None: as many as the loader says."""
        if self._ahead is not None:  # with workers
            self._loader.prefetch_factor = batches or self._ahead

    def _epoch_keys(self, epoch: int) -> list[Any]:
        seed = derived_seed(self._rng_seed, "order", epoch)
        with preserved_host_rng():
            seed_host(seed)
            _seed_sampler(self._sampler, epoch, seed)
            if self._batched:
                return [[(epoch, index) for index in indices] for indices in self._sampler]
            return [(epoch, index) for index in self._sampler]


def _seed_sampler(sampler: Any, epoch: int, seed: int) -> None:
    """Seed the generators of a sampler, or of the sampler inside a batch sampler, if it has any."""
    for one in (sampler, getattr(sampler, "sampler", None)):
        generator = getattr(one, "generator", None)
        if isinstance(generator, torch.Generator):
            generator.manual_seed(seed)
        set_epoch = getattr(one, "set_epoch", None)
        if callable(set_epoch):
            set_epoch(epoch)


def _preserving(iterator: Iterator[Any], before: Callable[[], None] = lambda: None) -> Iterator[Any]:
    """Yield from `iterator` without changing the process-wide generators: without workers, items are loaded in here.

    `before` is called before each batch, and may seed those generators.
    """
    while True:
        with preserved_host_rng():
            before()
            try:
                batch = next(iterator)
            except StopIteration:
                return
        yield batch


class IterableFeed(Feed):
    """Data that is iterated over once in each epoch. If it has `state_dict`, it can be resumed within an epoch."""

    def __init__(self, data: Iterable[Any], rng_seed: int) -> None:
        self._data: Any = data
        self._rng_seed = rng_seed
        self._stateful = hasattr(data, "state_dict") and hasattr(data, "load_state_dict")
        self._loaded = False
        self.note = "" if self._stateful else _ONLY_BETWEEN_EPOCHS
        self.batches = _length(data)

    def epoch(self, epoch: int, start: int) -> Iterator[Any]:
        """Yield the batches. The data draws each one under a seed of (rng_seed, epoch, batch)."""
        if start and not self._loaded:
            raise ValueError(_ONLY_BETWEEN_EPOCHS)
        self._loaded = False
        return self._batches(epoch, start)

    def _batches(self, epoch: int, start: int) -> Iterator[Any]:
        with preserved_host_rng():
            seed_host(derived_seed(self._rng_seed, "iterator", epoch))
            _seed_sampler(self._data, epoch, derived_seed(self._rng_seed, "order", epoch))
            iterator = iter(self._data)
        number = count(start + 1)
        yield from _preserving(iterator, lambda: seed_host(derived_seed(self._rng_seed, "batch", epoch, next(number))))

    def fingerprint(self) -> DataPrint:
        """Return the length only. Reading items could change what the data yields later."""
        return DataPrint(length=_length(self._data.dataset if isinstance(self._data, DataLoader) else self._data))

    def can_stop_at(self, batch: int) -> bool:
        """Return whether this is between epochs, or the data has a state."""
        return self._stateful or batch == 0

    def state(self) -> Any:
        """Return the data's own state, if it has one."""
        return self._data.state_dict() if self._stateful else None

    def load_state(self, state: Any) -> None:
        """Restore the data's state."""
        if self._stateful and state is not None:
            self._data.load_state_dict(state)
            self._loaded = True


class StatefulFeed(IterableFeed):
    """A DataLoader that keeps its own position, such as torchdata's StatefulDataLoader. It resumes within an epoch.

    Such a loader does not save the generators that its items draw from. An epoch that follows a restored end of an
    epoch has another order. If the loader is asked for its state before it has an iterator, it creates one and draws
    for it. So each item of a map-style dataset is loaded under its own seed, in any process. Between two epochs nothing
    is saved, unless the data itself has a state.
    """

    def __init__(self, loader: DataLoader[Any], rng_seed: int) -> None:
        super().__init__(loader, rng_seed)
        self._within = False
        has_state = any(hasattr(one, "state_dict") for one in (loader.dataset, loader.sampler))
        self._repeats = _is_map_style(loader.dataset) and not has_state
        self._dataset = loader.dataset
        # In shared memory, so that workers see it.
        self._epoch = torch.ones((), dtype=torch.int64).share_memory_()
        if self._repeats:
            # A DataLoader refuses a new dataset in its own __setattr__; bypass it.
            object.__setattr__(loader, "dataset", _SeededItems(loader.dataset, rng_seed, self._epoch))

    def epoch(self, epoch: int, start: int) -> Iterator[Any]:
        """Yield the batches of the loader."""
        self._epoch.fill_(epoch)
        self._within = start > 0
        if self._repeats and not start:
            # Persistent workers keep an iterator that draws the next order differently from a new one. Drop it.
            self._data._iterator = None  # noqa: SLF001 - torch has no public name for it
        return super().epoch(epoch, start)

    def _batches(self, epoch: int, start: int) -> Iterator[Any]:
        for batch in super()._batches(epoch, start):
            self._within = True
            yield batch
        self._within = False

    def fingerprint(self) -> DataPrint:
        """Return the fingerprint of the data set, if it is map-style."""
        return _print_of(self._dataset, self._data) if self._repeats else super().fingerprint()

    def state(self) -> Any:
        """Return the loader's state; None between two epochs if the data itself has no state."""
        if self._repeats and not self._within:
            return None
        with preserved_host_rng():
            # Seed as in `_batches`: if the loader creates its iterator now, it must be the same one.
            seed_host(derived_seed(self._rng_seed, "iterator", int(self._epoch)))
            return super().state()


class _SeededItems(Dataset[Any]):
    """A map-style dataset that loads each item under a seed of the current epoch and the item's index."""

    def __init__(self, inner: Any, rng_seed: int, epoch: torch.Tensor) -> None:
        self._inner, self._rng_seed, self._epoch = inner, rng_seed, epoch

    def __len__(self) -> int:
        return len(self._inner)

    def __getitem__(self, index: Any) -> Any:
        seed_host(derived_seed(self._rng_seed, "item", int(self._epoch), index))
        return self._inner[index]


def _print_of(dataset: Any, loader: DataLoader[Any]) -> DataPrint:
    length = _length(dataset)
    if length is None or hasattr(dataset, "state_dict"):
        return DataPrint(length=length)
    return of_dataset(dataset, loader)


def _length(data: Any) -> int | None:
    """Return the number of batches of an iterable, or None if it has no length."""
    try:
        return len(data)
    except TypeError:
        return None


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
        loader = DataLoader(data, batch_size, shuffle, num_workers=workers, persistent_workers=workers > 0)
        return LoaderFeed(loader, rng_seed)
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
    return hasattr(data, "__getitem__") and hasattr(data, "__len__")


def _from_loader(loader: DataLoader[Any], rng_seed: int) -> Feed:
    if hasattr(loader, "state_dict"):
        return StatefulFeed(loader, rng_seed)
    if isinstance(loader.dataset, IterableDataset):
        return IterableFeed(loader, rng_seed)
    return LoaderFeed(loader, rng_seed)


def _from_iterable(data: Any, rng_seed: int) -> Feed:
    if isinstance(data, IterableDataset):
        data = DataLoader(data, batch_size=None)
    if not isinstance(data, Iterable):
        kind = f"{type(data).__module__}.{type(data).__qualname__}"
        raise SetupRefused(f"the task's data is a {kind}; give a Dataset, a tuple of tensors or arrays, or a loader")
    if inspect.isgenerator(data) or isinstance(data, Iterator):
        raise SetupRefused("the task's data can be iterated over only once; give an object whose iter() starts again")
    return IterableFeed(data, rng_seed)
