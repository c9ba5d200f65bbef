"""Copy many tensors at once and compute their digests, piece by piece, in a few threads.

The thread that copied a piece also computes its digest, from the target. The threads are not torch's. Torch's threads
wait for each other after every tensor, which on a busy machine takes several times as long as the copy.

Promises: when a call returns, all threads are idle. The digest of a tensor covers its values row by row, independent of
its memory layout.
"""

from __future__ import annotations

import os
import queue
import threading
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import torch
import xxhash

from tolariad.trainer.checkpoints.tensors import copy_into, raw_bytes
from tolariad.trainer.torch_private import lists

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    Pair = tuple[torch.Tensor, torch.Tensor]
    # Copies the second tensor of each pair into the first.
    Copy = Callable[[list[Pair]], None]
    Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]

# From this size on, the C library of a trainer copies past the caches (see `supervisor.process`), which saves one of
# three memory transfers. With smaller pieces, which the digest would find in a cache, copy and digest took a third
# longer.
PIECE_BYTES: Final = 4 * 1024 * 1024
# More threads gain nothing: the memory bandwidth is used up.
_LANES_MAX: Final = 4
# A smaller amount is copied before a second thread has started.
_ALONE_BYTES: Final = 8 * 1024 * 1024
# Smaller tensors are copied by torch, many in one call.
_SMALL_BYTES: Final = 32 * 1024
_GROUP_BYTES: Final = 64 * 1024 * 1024
_PLAIN: Final = frozenset({torch.Tensor, torch.nn.Parameter})
_END: Final = None


class Digests:
    """Digests of tensors, by their address."""

    def __init__(self) -> None:
        self._found: dict[tuple[object, ...], int] = {}

    def note(self, tensor: torch.Tensor, digest: int) -> None:
        """Store a digest. Any thread may call this."""
        self._found[_place(tensor)] = digest

    def of(self, tensor: torch.Tensor) -> int:
        """Return the stored digest, or compute it now."""
        found = self._found.get(_place(tensor))
        return digest_of(raw_bytes(tensor)) if found is None else found


class _Job(NamedTuple):
    """A tensor whose digest is wanted. With a `source`, its bytes are copied into the tensor first."""

    target: torch.Tensor
    source: torch.Tensor | None = None


def digest_of(data: Any) -> int:
    """Return the XXH3. It is computed in pieces, and the interpreter lock is released for each."""
    whole = xxhash.xxh3_64()
    flat = memoryview(data)
    for first in range(0, len(flat), PIECE_BYTES):
        whole.update(flat[first : first + PIECE_BYTES])
    return int(whole.intdigest())


def copy(pairs: Sequence[Pair], digests: Digests | None = None) -> None:
    """Copy the second tensor of each pair into the first. With `digests`, store the digests of the targets."""
    plain: list[Pair] = []
    rest: list[Pair] = []
    for target, source in pairs:
        (plain if _is_plain(target, source) else rest).append((target, source))
    jobs = [_Job(target, source) for target, source in plain]
    # Tell autograd: a graph that holds one of the targets must notice that its values have changed.
    torch.autograd.graph.increment_version([target for target, _ in plain])

    def by_torch(add: Callable[[_Job], None]) -> None:
        for group in _groups(rest):
            copy_all(group)
            if digests is not None:
                for target, _ in group:
                    add(_Job(target))

    _run(jobs, digests, by_torch)


def take_digests(tensors: Iterable[torch.Tensor]) -> Digests:
    """Return the digests of tensors."""
    digests = Digests()
    _run([_Job(tensor) for tensor in tensors], digests, lambda _: None)
    return digests


@torch.no_grad()
def copy_all(pairs: Sequence[Pair]) -> None:
    """Copy with torch only, between any devices. Expanded tensors are copied one by one.

    Waits for all work of the devices, before the copies and after them.
    """
    devices = {tensor.device for pair in pairs for tensor in pair if tensor.is_cuda}
    # Before: the task may compute on streams of its own, and the copies run on the current one.
    for device in devices:
        torch.cuda.synchronize(device)
    plain = [pair for pair in pairs if 0 not in pair[0].stride()]
    if plain:
        lists.copy_([target for target, _ in plain], [source for _, source in plain], non_blocking=True)
    for target, source in pairs:
        if 0 in target.stride():
            copy_into(target, source)
    for device in devices:
        torch.cuda.synchronize(device)


def _run(jobs: list[_Job], digests: Digests | None, meanwhile: Callable[[Callable[[_Job], None]], None]) -> None:
    """Carry out `jobs`, the largest first, and the jobs that `meanwhile` adds."""
    jobs.sort(key=lambda job: job.target.nbytes, reverse=True)
    waiting: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
    for job in jobs:
        waiting.put(job)
    helpers = _helpers(sum(job.target.nbytes for job in jobs), digests)
    errors: list[Exception] = []
    threads = [
        threading.Thread(target=_work, args=(waiting, digests, errors), name=f"copy-{number}", daemon=True)
        for number in range(helpers)
    ]
    for thread in threads:
        thread.start()
    try:
        meanwhile(waiting.put)
    finally:
        for _ in range(helpers + 1):
            waiting.put(_END)
        _work(waiting, digests, errors)
        for thread in threads:
            thread.join()
    if errors:
        raise errors[0]


def _helpers(size: int, digests: Digests | None) -> int:
    """Return the number of threads besides the caller's. Digests get a second thread even on a single core."""
    if digests is None and size < _ALONE_BYTES:
        return 0
    return max(min(_LANES_MAX, len(os.sched_getaffinity(0))) - 1, 0 if digests is None else 1)


def _work(waiting: queue.SimpleQueue[_Job | None], digests: Digests | None, errors: list[Exception]) -> None:
    try:
        while (job := waiting.get()) is not _END:
            _do(job, digests)
    except Exception as error:  # noqa: BLE001 - the calling thread raises it
        errors.append(error)


def _do(job: _Job, digests: Digests | None) -> None:
    if job.source is None:
        if digests is not None:
            digests.note(job.target, digest_of(raw_bytes(job.target)))
        return
    into, source = _flat(job.target), _flat(job.source)
    whole = xxhash.xxh3_64()
    for first in range(0, into.size, PIECE_BYTES):
        piece: Any = into[first : first + PIECE_BYTES]
        np.copyto(piece, source[first : first + PIECE_BYTES])
        if digests is not None:
            whole.update(piece)
    if digests is not None:
        digests.note(job.target, whole.intdigest())


def _is_plain(target: torch.Tensor, source: torch.Tensor) -> bool:
    """Return whether a copy of bytes is enough: both are contiguous in host memory, with the same dtype and shape."""
    return (
        target.nbytes >= _SMALL_BYTES
        and target.dtype == source.dtype
        and target.shape == source.shape
        and all(
            type(one) in _PLAIN
            and one.device.type == "cpu"
            and one.is_contiguous()
            and not one.is_conj()
            and not one.is_neg()
            for one in (target, source)
        )
    )


def _flat(tensor: torch.Tensor) -> Bytes:
    flat: Bytes = tensor.detach().reshape(-1).view(torch.uint8).numpy()
    return flat


def _groups(pairs: Sequence[Pair]) -> Iterable[list[Pair]]:
    """Yield groups of pairs, so that the digests of one group are computed while the next one is copied."""
    group: list[Pair] = []
    size = 0
    for pair in pairs:
        group.append(pair)
        size += pair[0].nbytes
        if size >= _GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _place(tensor: torch.Tensor) -> tuple[object, ...]:
    return tensor.data_ptr(), tensor.nbytes, tensor.stride(), tensor.is_conj(), tensor.is_neg()
