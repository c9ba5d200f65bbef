"""Carriers take the place of index batches in a loader: the same indices, and with them the seed of each item.

torch's fetcher does `[dataset[index] for index in batch]`, or takes the next item of a stream for each entry. So
iterating over a carrier seeds the generators before each item, and at its end for the collate function. A batch for
`__getitems__`, and an index without batching, seed when they arrive in the worker; there they are the user's own value.
No object of the user's is wrapped.

Promises: what an item draws is a function of (rng_seed, epoch, position in the epoch's order), with any number of
workers and any start method. In a persistent worker the iterator of a stream begins each epoch from the same state as
in a new worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

from torch.utils.data import get_worker_info

from tolariad.trainer.data import generators
from tolariad.trainer.data.randomness import derived_seed, seed_host, seeds_of


class Key(NamedTuple):
    """Which batch of which epoch this is.

    * `first`: the position of its first index in the epoch's order.
    * `source`: the label of the loader, if there are several; "" for the first.
    * `of_stream`: the items come from an iterable data set, whose iterator the worker keeps.
    """

    rng_seed: int
    epoch: int
    batch: int
    first: int
    source: str = ""
    of_stream: bool = False

    @property
    def items(self) -> Callable[[int], int]:
        """The seed of an item, by its position in the order, or by its place in a batch of a stream."""
        if self.of_stream:
            return seeds_of(self.rng_seed, f"stream{self.source}", self.epoch, self.batch)
        return seeds_of(self.rng_seed, f"item{self.source}", self.epoch)

    @property
    def collate(self) -> int:
        """The seed of the collate function, and of a batch that `__getitems__` reads."""
        return derived_seed(self.rng_seed, f"collate{self.source}", self.epoch, self.batch)


def iterator_seed(rng_seed: int, epoch: int, worker: int, source: str = "") -> int:
    """Return the seed under which the iterator of a stream is made."""
    return derived_seed(rng_seed, f"iterator{source}", epoch, worker)


class Seeder:
    """Seeds the process-wide generators, and those that data set and collate function hold themselves."""

    def __init__(self, held: Iterable[Any] = (), *, worker: int = 0, epoch: int = 0, told: Iterable[Any] = ()) -> None:
        """`told`: the objects with `set_epoch` in a worker that outlives its epoch; their epoch was set to `epoch`."""
        self.held, self.worker = tuple(held), worker
        self._told, self._epoch = tuple(told), epoch
        self.stream_has_ended = False

    def hold(self, held: Iterable[Any]) -> None:
        """Seed these generators too, and no others."""
        self.held = tuple(held)

    def tell_end(self, *, of_stream: bool) -> None:
        """Note whether a stream came to its end within the last batch."""
        self.stream_has_ended = of_stream

    def seed(self, number: int) -> None:
        """Seed all of them."""
        seed_host(number)
        for one in self.held:
            generators.seed(one, number)

    def stand_at(self, epoch: int) -> None:
        """Tell the epoch to the worker's copies of the objects that ask for it."""
        if epoch != self._epoch:
            self._epoch = epoch
            for one in self._told:
                one.set_epoch(epoch)


class _Here:
    """The seeder of this process, if it is a worker."""

    def __init__(self) -> None:
        self.seeder = Seeder()


_here: Final = _Here()


def be_seeded_by(seeder: Seeder) -> None:
    """Use this seeder for everything that arrives in this worker."""
    _here.seeder = seeder


class Carrier:
    """The indices of one batch, whatever object the sampler made of them."""

    __slots__ = ("_by", "key", "values")

    def __init__(self, values: Any, key: Key, by: Seeder | None = None) -> None:
        """`by`: the seeder of this process. A worker has its own."""
        self.values, self.key, self._by = values, key, by

    def __iter__(self) -> Iterator[Any]:
        return _seeded(iter(self.values), self.key, self._by)

    def __len__(self) -> int:
        return len(self.values)

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived_whole, (type(self), self.values, self.key)


class ListCarrier(list[Any]):
    """The same as a list: a loader of the user's own may do with it what it does with its indices."""

    __slots__ = ("_by", "key")

    def __init__(self, values: list[Any], key: Key, by: Seeder | None = None) -> None:
        super().__init__(values)
        self.key, self._by = key, by

    def __iter__(self) -> Iterator[Any]:
        return _seeded(list.__iter__(self), self.key, self._by)

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived_whole, (type(self), list(list.__iter__(self)), self.key)


class StreamCarrier(ListCarrier):
    """As many entries as a batch of a stream has. After its fetch the worker is ready for the iterator to come."""

    __slots__ = ("_has_arrived",)

    def arrive(self) -> None:
        """Note that this is in the worker."""
        self._has_arrived = True

    def __del__(self) -> None:
        if getattr(self, "_has_arrived", False):
            _make_ready(self.key)


class ListArriving(list[Any]):
    """A batch that must reach the fetcher as a plain list. It seeds when it is unpickled, right before the fetch."""

    __slots__ = ("_epoch", "_seed")

    def __init__(self, value: list[Any], epoch: int, seed: int) -> None:
        super().__init__(value)
        self._epoch, self._seed = epoch, seed

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived, (list(self), self._epoch, self._seed)


class Arriving:
    """The same for any other value."""

    __slots__ = ("_epoch", "_seed", "_value")

    def __init__(self, value: Any, epoch: int, seed: int) -> None:
        self._value, self._epoch, self._seed = value, epoch, seed

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived, (self._value, self._epoch, self._seed)


class StreamPlace:
    """The place of one item of a stream without batches: the fetcher does not look at it."""

    __slots__ = ("has_arrived", "key")

    def __init__(self, key: Key, *, has_arrived: bool = False) -> None:
        self.key, self.has_arrived = key, has_arrived

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived_at, (self.key,)

    def __del__(self) -> None:
        if self.has_arrived:
            _make_ready(self.key)


def _seeded(values: Iterator[Any], key: Key, by: Seeder | None) -> Iterator[Any]:
    seeder, seed_of = by or _here.seeder, key.items
    position = 0 if key.of_stream else key.first
    for value in values:
        seeder.seed(seed_of(position))
        position += 1
        try:
            yield value
        except GeneratorExit:
            # A stream came to its end within the batch, which is collated all the same.
            if key.of_stream:
                seeder.tell_end(of_stream=True)
                seeder.seed(key.collate)
            raise
    seeder.seed(key.collate)


def _arrived_whole(kind: type[Any], values: Any, key: Key) -> Any:
    arrived = kind(values, key)
    _here.seeder.stand_at(key.epoch)
    if key.of_stream:
        arrived.arrive()
    return arrived


def _arrived(value: Any, epoch: int, seed: int) -> Any:
    _here.seeder.stand_at(epoch)
    _here.seeder.seed(seed)
    return value


def _arrived_at(key: Key) -> StreamPlace:
    arrived = StreamPlace(key, has_arrived=True)
    _here.seeder.stand_at(key.epoch)
    _here.seeder.seed(key.items(0))
    return arrived


def _make_ready(key: Key) -> None:
    """Seed for the iterator of the next epoch: a persistent worker makes it before anything of that epoch arrives."""
    if get_worker_info() is not None:
        seeder = _here.seeder
        seeder.stand_at(key.epoch + 1)
        seeder.seed(iterator_seed(key.rng_seed, key.epoch + 1, seeder.worker, key.source))
