"""The order of an epoch: the index batches that a loader's sampler draws, handed on with the seeds of their items.

A sampler is iterated as torch iterates it, lazily and no further than the loader asks. A checkpoint holds the batches
that were drawn ahead of training, and a digest of all that were drawn. A resume draws again from the state at the
epoch's begin, compares the digest, and hands on the stored batches.

Promises: each draw runs under a seed of (rng_seed, epoch, batch) in the process-wide generators; a sampler's own
generator keeps the user's seed. An endless sampler is never listed.
"""

from __future__ import annotations

import enum
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import accumulate, chain
from typing import Any, Final, NamedTuple

import numpy as np

from tolariad.trainer.data.carriers import (
    Arriving,
    Carrier,
    Key,
    ListArriving,
    ListCarrier,
    Seeder,
    StreamCarrier,
    StreamPlace,
)
from tolariad.trainer.data.leaves import can_be_written
from tolariad.trainer.data.randomness import preserved_host_rng, seed_host, seeds_of
from tolariad.trainer.data.share import ALL, Sharing

# The longest order that is stored whole, in indices.
WHOLE_MAX: Final = 1 << 24
_INT32: Final = 2**31
_NOTHING: Final = nullcontext()


class Fetching(enum.Enum):
    """How torch's fetcher uses what the order yields."""

    ITEMS = "each index of a batch"
    BATCH = "a batch for __getitems__"
    INDEX = "one index, without batching"
    STREAM = "a batch of the next items"
    NEXT = "the next item"

    @property
    def of_stream(self) -> bool:
        """Whether the items come from an iterable data set."""
        return self in (Fetching.STREAM, Fetching.NEXT)


class Drawn(NamedTuple):
    """One index batch, its number in the epoch, and the position of its first index."""

    number: int
    first: int
    value: Any


class DrawnSoFar(NamedTuple):
    """The part of an order that a checkpoint holds.

    `batches` are the batches that a resume needs; None if they cannot be written. `is_whole`: they are the rest of the
    epoch.
    """

    drawn: int
    items: int
    digest: int
    ended: bool
    batches: Any
    is_whole: bool


class Order:
    """Takes the place of the user's sampler: the loader iterates over it."""

    def __init__(self, rng_seed: int, seeder: Seeder, source: str = "") -> None:
        self._rng_seed, self._seeder, self._source = rng_seed, seeder, source
        self._indices: Any = ()
        self._fetching = Fetching.ITEMS
        self._in_workers = False
        self._epoch = 0
        self._recent: deque[Drawn] = deque()
        self._is_whole = False
        # The thread of the training, and whether another one has drawn.
        self._thread, self.is_in_thread = threading.get_ident(), False
        self._share: Sharing = ALL
        self._batches = 0
        self._begin_anew(0)

    def share_out(self, share: Sharing, batches: int) -> None:
        """Hand on a rank's batches only. All are drawn: ranks have one order. `batches`: their number in an epoch."""
        self._share, self._batches = share, batches

    def _begin_anew(self, epoch: int) -> None:
        self._epoch, self.drawn, self._items, self.digest, self.ended = epoch, 0, 0, 0, False
        self._seeder.tell_end(of_stream=False)
        # Batches that come first, and the draws that follow them.
        self._pending: list[Drawn] = []
        self._running: Iterator[Drawn] | None = None
        self._stored: dict[int, Drawn] = {}
        self._told: DrawnSoFar | None = None
        self._returned: Callable[[], None] | None = None
        # By the number of a step's last batch: the digest of all that were handed on or passed over up to it.
        self._passed: dict[int, int] = {}
        # Whether the draws up to the place of the checkpoint were those of the first time; None if nothing was drawn.
        self.agrees: bool | None = None
        # Whether as many indices were drawn: else the sampler stands elsewhere in its epoch.
        self.counts_agree = True

    def begin(self, epoch: int, indices: Any, fetching: Fetching, *, in_workers: bool, ahead: int) -> None:
        """Begin an epoch. `indices` is the sampler, `ahead` the number of batches that the loader may draw ahead."""
        self._begin_anew(epoch)
        self._thread = threading.get_ident()
        self._indices, self._fetching, self._in_workers = indices, fetching, in_workers
        self._recent = deque(maxlen=ahead + 1)
        self._is_whole = False

    def __len__(self) -> int:
        return len(self._indices)

    def __iter__(self) -> Iterator[Any]:
        pending, self._pending = self._pending, []
        running, self._running = self._running, None
        share, batches = self._share, self._batches
        drawn = chain(pending, self.draws() if running is None else running)
        for one in self._by_step(drawn, share.drawn_together) if share.drawn_together else drawn:
            if share is ALL or share.takes(one.number - 1, batches):
                yield self._carried(one)

    def _by_step(self, drawn: Iterator[Drawn], size: int) -> Iterator[Drawn]:
        """Hand on what was drawn, once the step that it belongs to is drawn as a whole, and keep its digest."""
        group: list[Drawn] = []
        digest, is_one = 0, self._fetching is Fetching.INDEX
        for one in drawn:
            digest = zlib.crc32(_bytes_of(one.value, is_one=is_one), digest)
            group.append(one)
            if one.number % size == 0:
                self._passed[one.number] = digest or 1
                yield from group
                group.clear()
        if group:
            self._passed[group[-1].number] = digest or 1
        yield from group

    def digest_up_to(self, number: int) -> int:
        """Return the digest of all that was drawn up to a step's last batch, since the start; 0 if it is not known."""
        return self._passed.pop(number, 0)

    # -- drawing -------------------------------------------------------------------------------------------------------

    def draws(self) -> Iterator[Drawn]:
        """Draw index batches from the sampler, each under its seed."""
        seed, streams = seeds_of(self._rng_seed, f"order{self._source}", self._epoch), self._fetching.of_stream
        indices: Iterator[Any] | None = None
        while True:
            with self._of_thread():
                if not streams:
                    seed_host(seed(self.drawn + 1))
                if indices is None:
                    indices = iter(self._indices)
                try:
                    value = next(indices)
                except StopIteration:
                    self.ended = True
                    return
            yield self._counted(value)

    def _of_thread(self) -> AbstractContextManager[None]:
        """A thread of the user's own gets no protection for the generators from anybody else."""
        if threading.get_ident() == self._thread:
            return _NOTHING
        self.is_in_thread = True
        return preserved_host_rng()

    def _counted(self, value: Any) -> Drawn:
        is_one = self._fetching in (Fetching.INDEX, Fetching.NEXT)
        if not is_one and not hasattr(value, "__len__"):
            value = list(value)
        self.drawn += 1
        one = Drawn(self.drawn, self._items, value)
        self._items += 1 if is_one else len(value)
        if not self._fetching.of_stream:
            self.digest = zlib.crc32(_bytes_of(value, is_one=is_one), self.digest)
        told = self._told
        if told is not None and self.drawn == told.drawn:
            self.agrees, self.counts_agree, self._told = self.digest == told.digest, self._items == told.items, None
            if self._returned is not None:
                self._returned()
        one = self._stored.pop(one.number, one)
        self._recent.append(one)
        return one

    def _carried(self, one: Drawn) -> Any:
        fetching = self._fetching
        key = Key(self._rng_seed, self._epoch, one.number, one.first, self._source, fetching.of_stream)
        by = self._seeder
        match fetching:
            case Fetching.ITEMS:
                return (ListCarrier if type(one.value) is list else Carrier)(one.value, key, by)
            case Fetching.STREAM:
                return StreamCarrier(list(one.value), key, by)
            case Fetching.NEXT if self._in_workers:
                return StreamPlace(key)
            case Fetching.BATCH:
                seed = key.collate
            case _:
                seed = key.items(0 if fetching.of_stream else one.first)
        if self._in_workers:
            return (ListArriving if type(one.value) is list else Arriving)(one.value, self._epoch, seed)
        self._seeder.seed(seed)
        return one.value

    # -- a whole order, a resume ---------------------------------------------------------------------------------------

    def draw_whole(self) -> bool:
        """Draw the whole epoch now, and keep it for checkpoints. Return False if it has no end that is near enough."""
        self._recent = deque()
        drawn: list[Drawn] = []
        running = self.draws()
        for one in running:
            drawn.append(one)
            if self._items > WHOLE_MAX:
                break
        self._pending, self._running = drawn, iter(()) if self.ended else running
        self._is_whole = self.ended
        return self.ended

    def skip(self, batches: int) -> None:
        """Draw so many batches without handing them on."""
        running = self.draws() if self._running is None else self._running
        left = self._pending[batches:]
        for _ in range(batches - len(self._pending)):
            next(running, None)
        self._pending, self._running = left, running

    def resume(self, told: DrawnSoFar, *, skip: int, redraw: bool, returned: Callable[[], None] | None = None) -> None:
        """Continue where a checkpoint was taken, without the first `skip` batches.

        `redraw`: draw up to that place now; else the loader does it while it loads these batches again. `returned` is
        then called at that place.
        """
        self._returned = returned
        stored = [Drawn(*one) for one in unpacked(told.batches)] if told.batches is not None else []
        if told.is_whole:
            self._pending = [one for one in stored if one.number > skip]
            self._running, self.drawn, self._items = iter(()), told.drawn, told.items
            self.digest, self.ended, self._is_whole = told.digest, told.ended, True
            self._recent = deque(stored)
            return
        self._told, self._stored = told, {one.number: one for one in stored}
        if redraw:
            self._redraw(told, skip)

    def _redraw(self, told: DrawnSoFar, skip: int) -> None:
        running = self.draws()
        while self.drawn < told.drawn and (one := next(running, None)) is not None:
            if one.number > skip:
                self._pending.append(one)
        if self.drawn < told.drawn:
            # It ended sooner than the first time: what was drawn ahead then is still to be trained.
            self.agrees = False
            left = [one for number, one in sorted(self._stored.items()) if number > max(skip, self.drawn)]
            self._pending += left
            self._recent += left
            self.drawn, self._items = told.drawn, told.items
        elif told.ended and not self.ended and next(running, None) is not None:
            self.agrees = False
        self.digest, self._stored = told.digest, {}
        self._running = running

    def so_far(self, after: int) -> DrawnSoFar:
        """Return what a checkpoint needs: `after` is the number of the last batch that was trained on."""
        kept = [tuple(one) for one in (self._recent if after >= 0 else ()) if one.number > after]
        batches = packed(kept)
        if self._fetching.of_stream or not can_be_written(batches):
            batches = None
        ended = self.ended or self._seeder.stream_has_ended
        return DrawnSoFar(self.drawn, self._items, self.digest, ended, batches, self._is_whole)


def drawn_whole(order: Order) -> tuple[int, int]:
    """Draw an epoch to its end, and return what identifies it."""
    for _ in order.draws():
        pass
    return order.drawn, order.digest


def _bytes_of(value: Any, *, is_one: bool) -> bytes:
    """Return bytes that are the same for equal indices, in every process."""
    if not is_one and type(value) is list and value and all(type(one) is int for one in value):
        try:
            return np.array(value, dtype=np.int64).tobytes()
        except OverflowError:
            pass
    plain = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(plain, (list, tuple)):
        plain = [one.tolist() if hasattr(one, "tolist") else one for one in plain]
    return repr(plain).encode("utf-8", "surrogatepass")


def packed(batches: list[Any]) -> Any:
    """Return batches of whole numbers as three arrays; any others as they are."""
    values = [value for _, _, value in batches]
    if not batches or not all(type(value) is list and all(type(one) is int for one in value) for value in values):
        return [list(one) for one in batches]
    flat = [index for value in values for index in value]
    small = not flat or (-_INT32 <= min(flat) and max(flat) < _INT32)
    if not small and not (-(2**63) <= min(flat) and max(flat) < 2**63):
        return [list(one) for one in batches]
    return {
        "first": (batches[0][0], batches[0][1]),
        "lengths": np.array([len(value) for value in values], dtype=np.int32),
        "indices": np.array(flat, dtype=np.int32 if small else np.int64),
    }


def unpacked(batches: Any) -> list[tuple[int, int, Any]]:
    """Return what `packed` was given."""
    if not isinstance(batches, dict):
        return [tuple(one) for one in batches]
    number, first = batches["first"]
    ends = list(accumulate(batches["lengths"].tolist()))
    indices = batches["indices"].tolist()
    begins = [0, *ends[:-1]]
    return [
        (number + at, first + begin, indices[begin:end])
        for at, (begin, end) in enumerate(zip(begins, ends, strict=True))
    ]
