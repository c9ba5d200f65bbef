"""A torch DataLoader as a source of batches whose indices come from an `Order`.

A loader of torch's own class is rebuilt from its public arguments around the user's own data set, collate function and
worker function. Its attributes are read again before each epoch. A loader that overrides anything of torch's iteration
is iterated itself. While torch makes its iterator, the user's sampler is exchanged for an object of a subclass of its
class, with the same attributes.

Promises: what the user's code sees is the user's own object, or such an instance of a subclass.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    IterDataPipe,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    default_collate,
    default_convert,
)

from tolariad.trainer.data.carriers import Seeder
from tolariad.trainer.data.order import Fetching, Order
from tolariad.trainer.data.randomness import derived_seed
from tolariad.trainer.data.share import ALL, Sharing
from tolariad.trainer.data.workers import WorkerPlan, WorkerStart, require_sendable
from tolariad.trainer.torch_private.choice import ONLY_PUBLIC
from tolariad.trainer.torch_private.loaders import forget_iterator, iterator_of, set_prefetch

# What decides how torch iterates.
_MACHINERY: Final = (
    "__iter__",
    "_get_iterator",
    "__len__",
    "_index_sampler",
    "_auto_collation",
    "__getattribute__",
    "__getattr__",
    "batch_sampler",
    "sampler",
)
_KEPT: Final = (
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "multiprocessing_context",
    "prefetch_factor",
    "persistent_workers",
    "pin_memory_device",
    "in_order",
)
# Of what torch draws for the seed of a worker.
_SEED_MAX: Final = 2**63 - 1
_OF_WORKERS: Final = ("multiprocessing_context", "prefetch_factor", "persistent_workers")


def overridden(loader: DataLoader[Any]) -> list[str]:
    """Return what of torch's iteration the loader's class overrides."""
    own = [kind for kind in type(loader).__mro__ if kind not in DataLoader.__mro__]
    return [name for kind in own for name in _MACHINERY if name in vars(kind)]


def is_stateful(loader: Any) -> bool:
    """Return whether this is exactly torchdata's StatefulDataLoader, which iterates as torch's own does."""
    kind = type(loader)
    return kind.__name__ == "StatefulDataLoader" and kind.__module__.startswith("torchdata.")


def is_known(loader: Any) -> bool:
    """Return whether a loader is torch's own in every part: tensors in memory, in an order that torch draws."""
    if type(loader) is not DataLoader or type(loader.dataset) is not TensorDataset or loader.worker_init_fn is not None:
        return False
    batches = loader.batch_sampler
    return (
        vars(loader.dataset).keys() == {"tensors"}
        and {type(one) for one in loader.dataset.tensors} <= {torch.Tensor}
        and loader.collate_fn in (default_collate, default_convert)
        and type(loader.sampler) in (RandomSampler, SequentialSampler)
        and (batches is None or (type(batches) is BatchSampler and batches.sampler is loader.sampler))
    )


def reads_ahead(data: Any) -> bool:
    """Return whether this is torchdata's Loader of nodes: brought back by its state, it reads a batch in `iter`."""
    kinds = type(data).__mro__
    return any(kind.__name__ == "Loader" and kind.__module__.startswith("torchdata.nodes") for kind in kinds)


class Source:
    """One loader, and the order that it draws from."""

    def __init__(self, loader: DataLoader[Any], rng_seed: int, number: int = 0) -> None:
        """`number`: the loader's number among those that one data object holds. Raises SetupRefused."""
        require_sendable(loader)
        self.loader = loader
        # What torch iterates over; None before the first epoch of a loader that is rebuilt.
        self._iterated: DataLoader[Any] | None = loader
        self._rng_seed = rng_seed
        self._label = f".{number}" if number else ""
        self.seeder = Seeder()
        self.order = Order(rng_seed, self.seeder, self._label)
        self._warms: tuple[Any, ...] = ()
        self._ahead: int | None = None
        # The worker that reads the first batch of the epoch.
        self._turn = 0
        # Whether an epoch has begun since workers were ended: without torch's private name that is all that is known.
        self._has_begun = False
        self._share: Sharing = ALL
        self._batches = 0
        # Whether torch draws the workers' base seed from a generator of ours, and not from the loader's.
        self._has_own_base = True

    def warm_by(self, indices: tuple[Any, ...]) -> None:
        """Let each worker read these items first: a data set may make its generator then."""
        self._warms = indices

    def load_ahead(self, batches: int | None) -> None:
        """Let each worker load so many batches ahead, from the next epoch on. None: as many as the loader says."""
        self._ahead = batches

    def share_out(self, share: Sharing, batches: int) -> None:
        """Read the share of a rank only. `batches`: those of an epoch."""
        self._share, self._batches = share, batches
        self.order.share_out(share, batches)

    def go_on_after(self, batches: int) -> None:
        """Let the batches after so many ones come from the workers that they come from without an interruption.

        Workers that live on with other numbers end.
        """
        turn = self._share.before(batches, self._batches) % (self.loader.num_workers or 1)
        if turn != self._turn:
            self.end_workers()
        self._turn = turn

    @property
    def indices(self) -> Any:
        """The user's object that indices are drawn from."""
        return self.loader.batch_sampler if self.loader.batch_sampler is not None else self.loader.sampler

    @property
    def is_stream(self) -> bool:
        """Whether the data set is iterated over."""
        return isinstance(self.loader.dataset, IterableDataset)

    @property
    def fetching(self) -> Fetching:
        """How torch fetches from the data set."""
        is_batched = self.loader.batch_sampler is not None
        if self.is_stream:
            return Fetching.STREAM if is_batched else Fetching.NEXT
        if not is_batched:
            return Fetching.INDEX
        # As torch asks.
        whole = getattr(self.loader.dataset, "__getitems__", None)
        return Fetching.BATCH if whole else Fetching.ITEMS

    @property
    def has_workers(self) -> bool:
        """Whether workers wait for the next epoch."""
        if ONLY_PUBLIC:
            return self.is_persistent and self._has_begun
        return self._iterated is not None and iterator_of(self._iterated) is not None

    @property
    def can_end_workers(self) -> bool:
        """Whether workers that live on can be ended before the program: torch has no public way for a loader's own."""
        return not (ONLY_PUBLIC and self.is_persistent)

    def end_workers(self) -> None:
        """End workers that wait for the next epoch."""
        if self._iterated is not None:
            forget_iterator(self._iterated)
            self._has_begun = self._has_begun and not self.can_end_workers

    @property
    def is_persistent(self) -> bool:
        """Whether workers live on after an epoch."""
        return bool(self.loader.persistent_workers and self.loader.num_workers)

    def begin(self, epoch: int) -> None:
        """Begin an epoch of the order."""
        self._has_begun = True
        # What a loader takes ahead lies between batches of other ranks.
        ahead = self._share.span(self.loader.num_workers * (self.loader.prefetch_factor or 2) + 1) - 1
        in_workers = self.loader.num_workers > 0
        self.order.begin(epoch, self.indices, self.fetching, in_workers=in_workers, ahead=ahead)

    @property
    def library_generator(self) -> torch.Generator | None:
        """The generator of torchdata's sampler, if the user gave none: torchdata makes it with a seed of its own."""
        sampler: Any = self.loader.sampler
        is_librarys = is_stateful(self.loader) and type(sampler).__module__.startswith("torchdata.")
        return getattr(sampler, "generator", None) if is_librarys and self.loader.generator is None else None

    def begin_drawing(self, epoch: int) -> None:
        """Draw from the loader's own generator what torch draws from it for its workers, before the order."""
        if (own := self.library_generator) is not None:
            own.manual_seed(derived_seed(self._rng_seed, f"order{self._label}", epoch))
        generator = self.loader.generator
        lives_on = self.is_persistent and epoch > 1
        if self._has_own_base and isinstance(generator, torch.Generator) and not lives_on:
            torch.empty((), dtype=torch.int64).random_(generator=generator)

    def _start(self, epoch: int) -> WorkerStart:
        loader = self.loader
        return WorkerStart(
            WorkerPlan(
                rng_seed=self._rng_seed,
                epoch=epoch,
                source=self._label,
                is_persistent=self.is_persistent,
                user=loader.worker_init_fn,
                collate=loader.collate_fn,
                warms=self._warms,
                turn=self._turn,
                base=self._seed_under(1) & _SEED_MAX if self._is_lasting_pipe else None,
            )
        )

    @property
    def _is_lasting_pipe(self) -> bool:
        """Whether this is a data pipe in workers that live on.

        For a pipe torch draws the epoch's order beside the workers' base seed, also while workers live on.
        """
        return self.is_persistent and isinstance(self.loader.dataset, IterDataPipe)

    def _seed_under(self, epoch: int) -> int:
        return derived_seed(self._rng_seed, f"workers{self._label}", epoch)

    def _base(self, epoch: int) -> int:
        """The seed that torch draws the workers' base seed under: workers that live on were started in epoch 1."""
        return self._seed_under(1 if self.is_persistent and not self._is_lasting_pipe else epoch)


class RebuiltSource(Source):
    """A loader of torch's own class."""

    def __init__(self, loader: DataLoader[Any], rng_seed: int) -> None:
        super().__init__(loader, rng_seed)
        self._generator = torch.Generator()
        self._made: tuple[Any, ...] = ()
        self._iterated = None

    @property
    def can_end_workers(self) -> bool:
        """Whether workers that live on can be ended: they end with the loader that was made here."""
        return True

    def end_workers(self) -> None:
        """End workers that wait for the next epoch."""
        super().end_workers()
        # The public way: nobody holds the loader and its iterator any more.
        self._iterated, self._has_begun = None, False

    def iterator(self, epoch: int) -> Iterator[Any]:
        """Return torch's iterator over the epoch."""
        loader = self._refreshed(epoch)
        self._generator.manual_seed(self._base(epoch))
        # Only between two epochs: within one it may have sent more batches to its workers than the new number.
        set_prefetch(iterator_of(loader), loader.prefetch_factor)
        return iter(loader)

    def _refreshed(self, epoch: int) -> DataLoader[Any]:
        """Return the loader, made anew if the user's has other attributes than before."""
        now = self._arguments()
        rebuilt = self._iterated
        if rebuilt is None or not _are_equal(now, self._made):
            rebuilt = self._rebuilt()
            self._iterated, self._made = rebuilt, now
        if self.loader.num_workers:
            rebuilt.worker_init_fn = self._start(epoch)
            rebuilt.prefetch_factor = self._ahead or self.loader.prefetch_factor
        return rebuilt

    def _arguments(self) -> tuple[Any, ...]:
        loader = self.loader
        return (loader.dataset, self.fetching, loader.batch_size, loader.drop_last, *map(_argument(loader), _KEPT))

    def _rebuilt(self) -> DataLoader[Any]:
        loader = self.loader
        kept = {name: getattr(loader, name) for name in _KEPT if hasattr(loader, name)}
        if not loader.num_workers:
            kept = {name: value for name, value in kept.items() if name not in _OF_WORKERS}
        kept["generator"] = self._generator
        match self.fetching:
            case Fetching.STREAM | Fetching.NEXT:
                rebuilt = DataLoader(loader.dataset, loader.batch_size, drop_last=loader.drop_last, **kept)
                # The constructor takes no sampler for a stream.
                name = "batch_sampler" if rebuilt.batch_sampler is not None else "sampler"
                vars(rebuilt)[name] = self.order
                return rebuilt
            case Fetching.INDEX:
                return DataLoader(loader.dataset, batch_size=None, sampler=self.order, **kept)
            case _:
                return DataLoader(loader.dataset, batch_sampler=self.order, **kept)


def _are_equal(now: tuple[Any, ...], then: tuple[Any, ...]) -> bool:
    """Compare arguments of a loader. Objects of the user's are compared by identity: their `==` may mean anything."""
    plain = (bool, int, float, str)
    pairs = zip(now, then, strict=True)
    return all(a is b or (isinstance(a, plain) and isinstance(b, plain) and a == b) for a, b in pairs)


def _argument(loader: DataLoader[Any]) -> Any:
    return lambda name: getattr(loader, name, None)


class SwappedSource(Source):
    """A loader that is iterated itself: by this program, or by an object of the user's that holds it."""

    def __init__(self, loader: DataLoader[Any], rng_seed: int, number: int = 0) -> None:
        super().__init__(loader, rng_seed, number)
        self._epoch = 0
        self._stand_in: Any = None
        # Any other class may draw from its generator itself, in its own order.
        self._has_own_base = is_stateful(loader)

    def begin(self, epoch: int) -> None:
        """Begin an epoch of the order."""
        super().begin(epoch)
        self._epoch = epoch
        self._stand_in = stand_in(self.indices, self.order)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """In the block, an iterator that torch makes over the loader draws from the order."""
        held, loader = vars(self.loader), self.loader
        exchanged = {"batch_sampler" if loader.batch_sampler is not None else "sampler": self._stand_in}
        if loader.num_workers:
            exchanged["worker_init_fn"] = self._start(self._epoch)
            exchanged["prefetch_factor"] = self._ahead or loader.prefetch_factor
        lives_on = self.is_persistent and self._epoch > 1
        if self._has_own_base or (lives_on and not self.has_workers and not self._is_lasting_pipe):
            # Workers that live on had their seed drawn in epoch 1. Those of a pipe get it by their plan.
            exchanged["generator"] = torch.Generator().manual_seed(self._base(self._epoch))
        own = {name: held[name] for name in exchanged if name in held}
        held.update(exchanged)
        try:
            yield
        finally:
            for name in exchanged:
                held.pop(name)
            held.update(own)


def stand_in(indices: Any, order: Order) -> Any:
    """Return an object of a subclass of the sampler's class, with its attributes, that iterates over `order`."""
    kind = type(indices)
    try:
        made = types.new_class(
            kind.__name__, (kind,), exec_body=lambda body: body.update(_iterating(order, kind.__module__))
        )
        found: Any = object.__new__(made)
        found.__dict__ = indices.__dict__
    except (TypeError, AttributeError):
        # A class of Python's own, such as list.
        return order
    return found


def _iterating(order: Order, module: str) -> dict[str, Any]:
    return {"__iter__": lambda _: iter(order), "__slots__": (), "__module__": module}
