"""Random numbers: seeds derived from the run's seed, and the states of the process-wide generators.

Promises: a derived seed is a pure function of its arguments, on every machine and with every Python version. Reading
the states draws nothing.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import torch

_PYTHON: Final[Any] = random._inst  # noqa: SLF001 - random has no public name for it
_seed_python: Final[Callable[[int], None]] = super(random.Random, _PYTHON).seed


def derived_seed(rng_seed: int, *labels: int | str) -> int:
    """Return a 63-bit seed for `labels`. The seeds of different labels are independent."""
    text = "\x1f".join(map(str, (rng_seed, *labels)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def seeds_of(rng_seed: int, *labels: int | str) -> Callable[[int], int]:
    """Return the function of a number that gives `derived_seed(rng_seed, *labels, number)`, in half of the time."""
    begun = hashlib.blake2b("\x1f".join(map(str, (rng_seed, *labels, ""))).encode(), digest_size=8)

    def seed(number: int) -> int:
        whole = begun.copy()
        whole.update(b"%d" % number)
        return int.from_bytes(whole.digest(), "little") >> 1

    return seed


def seed_host(seed: int) -> None:
    """Seed Python, NumPy and torch's CPU generator. torch.manual_seed also seeds devices, and takes 13 times longer."""
    # As random.seed does, without its questions about other types: an item of data is a microsecond cheaper.
    _seed_python(seed)
    _PYTHON.gauss_next = None
    np.random.seed(seed & 0xFFFF_FFFF)  # noqa: NPY002 - the process-wide generator is the point
    torch.default_generator.manual_seed(seed)


def seed_everything(seed: int) -> None:
    """Seed every process-wide generator, including those of all CUDA devices."""
    seed_host(seed)
    torch.manual_seed(seed)


def rng_states() -> dict[str, Any]:
    """Return the states of all process-wide generators, as a tree that a checkpoint can hold."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(),  # noqa: NPY002 - the process-wide generator is the point
        "torch": torch.get_rng_state(),
        "cuda": list(cuda),
    }


def set_rng_states(states: dict[str, Any]) -> None:
    """Set all process-wide generators. The machine must have as many CUDA devices as `states`, if that holds any."""
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])  # noqa: NPY002
    torch.set_rng_state(states["torch"])
    if states["cuda"]:
        torch.cuda.set_rng_state_all(states["cuda"])


@contextmanager
def preserved_host_rng() -> Iterator[None]:
    """Restore the generators of Python, NumPy and torch's CPU at the end of the block, also after an exception."""
    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        torch.set_rng_state(cpu)


@contextmanager
def preserved_rng() -> Iterator[None]:
    """Do the same, and restore the generators of every CUDA device too."""
    states = rng_states()
    try:
        yield
    finally:
        set_rng_states(states)
