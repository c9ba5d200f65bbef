"""Fingerprints of data sets: by them a resume notices that it was given other data.

Eight items, spread evenly from the first to the last, are read and hashed. Promises: a fingerprint depends on the items
only, and not on batch size, order, workers or the run's seed. Reading draws nothing from the process-wide generators,
nor from one that the data set holds. If training reads items in workers, so does this: a file that is opened for
reading must not be inherited by the workers of training.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, Final

import numpy as np
import torch
from blake3 import blake3
from torch.utils.data import DataLoader, Dataset

from tolariad.core.trainer.words import DataPrint
from tolariad.trainer.checkpoints.tensors import raw_bytes
from tolariad.trainer.data.randomness import derived_seed, preserved_rng, seed_host

_ITEMS: Final = 8
_HASH_BYTES: Final = 8
# Of one tensor, array or text. More than that would make the start wait.
_LEAF_BYTES: Final = 1 << 20
_SEQUENCE_MAX: Final = 1 << 16
_DEPTH_MAX: Final = 8
_OBJECTS_MAX: Final = 1000
# The options of a loader that decide how a worker reads an item.
_AS_TRAINING: Final = ("worker_init_fn", "multiprocessing_context", "timeout")


def of_items(length: int, item: Callable[[int], Any]) -> DataPrint:
    """Return the fingerprint of `length` items, read in this process."""
    return _of(_Hashes(item), length)


def of_dataset(dataset: Any, loader: DataLoader[Any]) -> DataPrint:
    """Return the fingerprint of a map-style data set. It is read in a worker if the loader reads it in workers."""
    length, copied = len(dataset), _copied(dataset)
    hashes = _Hashes(copied.__getitem__, copied)
    if not loader.num_workers:
        return _of(hashes, length)
    like = {name: getattr(loader, name) for name in _AS_TRAINING}
    reader = DataLoader(
        hashes,
        batch_size=None,
        sampler=_spread(length),
        num_workers=1,
        collate_fn=_as_it_is,
        generator=torch.Generator(),  # else the worker's seed is drawn from the process-wide one
        **like,
    )
    return _made(length, reader)


def _copied(dataset: Any) -> Any:
    """Return a shallow copy, and of the data set inside it: a counter of reads, for example, stays as it is."""
    if isinstance(dataset, (list, tuple, dict)):
        return dataset
    copied, inner = copy.copy(dataset), getattr(dataset, "dataset", None)
    if hasattr(inner, "__getitem__"):
        copied.dataset = _copied(inner)
    return copied


def _of(hashes: _Hashes, length: int) -> DataPrint:
    return _made(length, map(hashes.__getitem__, _spread(length)))


def _made(length: int, hashed: Any) -> DataPrint:
    items = tuple(hashed)
    return DataPrint(length=length, items=items if items and items[0] != _VOLATILE else ())


def _spread(length: int) -> list[int]:
    """Return the indices that are read: the first, the last, and some between."""
    count = min(length, _ITEMS)
    return [index * (length - 1) // max(1, count - 1) for index in range(count)]


def _as_it_is(item: Any) -> Any:
    return item


_VOLATILE: Final = "volatile"


class _Hashes(Dataset[str]):
    """The hash of each item: empty if it cannot be read, `_VOLATILE` if it is the first and differs at each reading."""

    def __init__(self, item: Callable[[int], Any], holder: Any = None) -> None:
        """`holder`: the object whose own generators must not be advanced."""
        self._item, self._holder = item, holder

    def __getitem__(self, index: int) -> str:
        first = self._hash(index)
        return first if index or self._hash(index) == first else _VOLATILE

    def _hash(self, index: int) -> str:
        hasher = blake3()
        with preserved_rng(), _preserved(self._holder):
            # The same seed in every run and epoch: an augmentation draws the same numbers.
            seed_host(derived_seed(0, "fingerprint", index))
            try:
                _add(hasher, self._item(index), 0)
            except Exception:  # noqa: BLE001 - an item that is never trained on may raise anything
                return ""
        return hasher.hexdigest(_HASH_BYTES)


def _add(hasher: Any, value: Any, depth: int) -> None:
    """Add one value of an item to the hash, with its type. Of an object that is not known only the type counts."""
    hasher.update(f"<{type(value).__qualname__}>".encode())
    if isinstance(value, torch.Tensor):
        _add_tensor(hasher, value)
    elif isinstance(value, np.ndarray) and value.dtype.kind != "O":
        hasher.update(f"{value.dtype.str} {value.shape}".encode())
        hasher.update(np.ascontiguousarray(value.reshape(-1)[:_LEAF_BYTES]).tobytes())
    elif isinstance(value, (bytes, bytearray)):
        hasher.update(bytes(value[:_LEAF_BYTES]))
    elif value is None or isinstance(value, (str, bool, int, float, complex, np.generic)):
        hasher.update(str(value)[:_LEAF_BYTES].encode("utf-8", "surrogatepass"))
    elif depth < _DEPTH_MAX:
        _add_inside(hasher, value, depth + 1)


def _add_tensor(hasher: Any, tensor: torch.Tensor) -> None:
    hasher.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
    if tensor.layout is torch.strided and not tensor.is_quantized and tensor.device.type != "meta":
        hasher.update(raw_bytes(tensor.detach().reshape(-1)[:_LEAF_BYTES]))


def _add_inside(hasher: Any, value: Any, depth: int) -> None:
    """Add what a container holds: a mapping, a sequence, an image, or an object with attributes."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            _add(hasher, key, depth)
            _add(hasher, item, depth)
    elif isinstance(value, (Sequence, np.ndarray)):
        for item in islice(value.reshape(-1) if isinstance(value, np.ndarray) else value, _SEQUENCE_MAX):
            _add(hasher, item, depth)
    elif hasattr(value, "__array_interface__"):
        _add(hasher, np.asarray(value), depth)
    elif hasattr(value, "__dict__"):
        _add(hasher, vars(value), depth)


@contextmanager
def _preserved(holder: Any) -> Iterator[None]:
    """Restore the generators that `holder` holds, directly or through its attributes, at the end of the block."""
    restore = [undo for one in _reachable(holder) if (undo := _undo(one)) is not None]
    try:
        yield
    finally:
        for undo in restore:
            undo()


def _undo(generator: Any) -> Callable[[], None] | None:
    """Return a function that restores this generator's present state; None if it is no generator."""
    if isinstance(generator, random.Random):
        state = generator.getstate()
        return lambda: generator.setstate(state)
    if isinstance(generator, torch.Generator):
        held = generator.get_state()
        return lambda: _ignore(generator.set_state(held))
    if isinstance(generator, np.random.RandomState):
        legacy = generator.get_state()
        return lambda: generator.set_state(legacy)
    if isinstance(generator, np.random.Generator):
        bits = generator.bit_generator
        stored = bits.state
        return lambda: setattr(bits, "state", stored)
    return None


def _ignore(_: Any) -> None:
    """Drop a result."""


def _reachable(holder: Any) -> Iterator[Any]:
    """Yield the objects that `holder` holds in attributes, lists and dicts; so many at most."""
    seen: set[int] = set()
    waiting = [holder]
    while waiting and len(seen) < _OBJECTS_MAX:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, (str, bytes, int, float, torch.Tensor, np.ndarray, type(None))):
            continue
        seen.add(id(one))
        yield one
        if isinstance(one, Mapping):
            waiting.extend(one.values())
        elif isinstance(one, (list, tuple)):
            waiting.extend(one[:_ITEMS])
        elif not isinstance(one, type):
            waiting.extend(getattr(one, "__dict__", {}).values())
