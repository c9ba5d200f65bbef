"""Fingerprints of data sets: by them a resume notices that it was given other data.

Eight items, spread evenly from the first to the last, are read and hashed. Promises: a fingerprint depends on the items
only, and not on batch size, order, workers or the run's seed. Reading draws nothing from the process-wide generators,
and leaves what the data set holds as it was. If training reads items in workers, so does this: a file that is opened
for reading must not be inherited by the workers of training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final

import numpy as np
import torch
from blake3 import blake3
from torch.utils.data import DataLoader

from tolariad.core import messages as m
from tolariad.trainer.checkpoints.tensors import raw_bytes
from tolariad.trainer.data.carriers import ListArriving, Seeder
from tolariad.trainer.data.held import held_by
from tolariad.trainer.data.own_state import OF_DATA, OwnState
from tolariad.trainer.data.randomness import derived_seed, preserved_rng
from tolariad.trainer.data.walk import Place
from tolariad.trainer.data.workers import WorkerPlan, WorkerStart

_ITEMS: Final = 8
_HASH_BYTES: Final = 8
# Of one tensor, array or text. More than that would make the start wait.
_LEAF_BYTES: Final = 1 << 20
_SEQUENCE_MAX: Final = 1 << 16
_DEPTH_MAX: Final = 8


def of_items(length: int, item: Callable[[int], Any]) -> m.DataPrint:
    """Return the fingerprint of `length` items, read in this process. For data of this program's own kinds."""
    return _made(length, (_hash_of(item, index) for index in _to_read(length)))


def of_dataset(dataset: Any, loader: DataLoader[Any]) -> m.DataPrint:
    """Return the fingerprint of a map-style data set. It is read in a worker if the loader reads it in workers."""
    length = len(dataset)
    if loader.num_workers:
        return _made(length, _in_worker(loader, length))
    before = OwnState(lambda: [Place("dataset", dataset)], OF_DATA)
    with preserved_rng():
        try:
            return _made(length, _here(dataset, length))
        finally:
            before.restore({})


def _here(dataset: Any, length: int) -> Iterator[str]:
    seeder = Seeder(held_by(dataset))
    for index in _to_read(length):
        seeder.seed(_seed_of(index))
        yield _hash_of(partial(item_of, dataset), index)


def _seed_of(index: int) -> int:
    """Return the seed of an item: the same in every run and epoch, so that an augmentation draws the same numbers."""
    return derived_seed(0, "fingerprint", index)


def _in_worker(loader: DataLoader[Any], length: int) -> Iterator[str]:
    plan = WorkerPlan(0, 0, "", is_persistent=False, user=loader.worker_init_fn, collate=None)
    batches = [ListArriving([index], 0, _seed_of(index)) for index in _to_read(length)]
    reader = DataLoader(
        loader.dataset,
        batch_sampler=batches,
        num_workers=1,
        collate_fn=_hash_of_first,
        generator=torch.Generator(),  # else the worker's seed is drawn from the process-wide one
        worker_init_fn=WorkerStart(plan),
        multiprocessing_context=loader.multiprocessing_context,
        timeout=loader.timeout,
    )
    hashed = iter(reader)
    while True:
        try:
            found: str = next(hashed)
        except StopIteration:
            return
        except Exception:  # noqa: BLE001 - an item that is never trained on may raise anything
            found = ""
        yield found


def item_of(dataset: Any, index: Any) -> Any:
    """Read one item as torch's fetcher does."""
    whole = getattr(dataset, "__getitems__", None)
    return whole([index])[0] if whole else dataset[index]


def _made(length: int, hashes: Iterator[str]) -> m.DataPrint:
    """Return the fingerprint. The first item was read twice: if it differs, items are not compared."""
    again, *items = [*hashes] or [""]
    return m.DataPrint(length=length, items=tuple(items) if items and items[0] == again else ())


def _to_read(length: int) -> list[int]:
    """Return the indices that are read: the first, twice, the last, and some between."""
    count = min(length, _ITEMS)
    spread = [index * (length - 1) // max(1, count - 1) for index in range(count)]
    return [*spread[:1], *spread]


def _hash_of_first(items: list[Any]) -> str:
    return hash_of_value(items[0])


def _hash_of(item: Callable[[int], Any], index: int) -> str:
    """Return the hash of an item; empty if it cannot be read."""
    try:
        return hash_of_value(item(index))
    except Exception:  # noqa: BLE001 - an item that is never trained on may raise anything
        return ""


def hash_of_value(value: Any) -> str:
    """Return the hash of a value, by what it holds. Of an object that is not known only the type counts."""
    hasher = blake3()
    _add(hasher, value, 0)
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
