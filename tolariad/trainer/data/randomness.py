"""Random numbers: seeds derived from the run's seed, and blocks that restore the process-wide generators.

Promises: a derived seed is a pure function of its arguments, on every machine and with every Python version.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def derived_seed(rng_seed: int, *labels: int | str) -> int:
    """Return a 63-bit seed for `labels`. The seeds of different labels are independent."""
    text = "\x1f".join(map(str, (rng_seed, *labels)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def seed_host(seed: int) -> None:
    """Seed Python, NumPy and torch's CPU generator. torch.manual_seed also seeds devices, and takes 13 times longer."""
    random.seed(seed)
    np.random.seed(seed & 0xFFFF_FFFF)  # noqa: NPY002 - the process-wide generator is the point
    torch.default_generator.manual_seed(seed)


def seed_everything(seed: int) -> None:
    """Seed every process-wide generator, including those of all CUDA devices."""
    seed_host(seed)
    torch.manual_seed(seed)


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
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    try:
        with preserved_host_rng():
            yield
    finally:
        if devices is not None:
            torch.cuda.set_rng_state_all(devices)
