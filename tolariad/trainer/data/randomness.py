"""Random numbers: seeds derived from one, and blocks that leave the process-wide generators as they found them.

Promises: a derived seed is a pure function of its arguments, on every machine and under every Python version.
It must not know: what is being drawn.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def derived_seed(rng_seed: int, *labels: int | str) -> int:
    """A 63-bit seed for what `labels` name, independent of the seeds of other labels."""
    text = "\x1f".join(map(str, (rng_seed, *labels)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def seed_host(seed: int) -> None:
    """Seed Python, NumPy and torch's CPU generator. torch.manual_seed would cost 13 times as much: it seeds devices too."""
    random.seed(seed)
    np.random.seed(seed & 0xFFFF_FFFF)  # noqa: NPY002 - the process-wide generator is the point
    torch.default_generator.manual_seed(seed)


def seed_everything(seed: int) -> None:
    """Seed every process-wide generator, those of all CUDA devices included."""
    seed_host(seed)
    torch.manual_seed(seed)


@contextmanager
def preserved_host_rng() -> Iterator[None]:
    """Leave the generators of Python, NumPy and torch's CPU as they were, whatever happens inside."""
    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        torch.set_rng_state(cpu)


@contextmanager
def preserved_rng() -> Iterator[None]:
    """The same for every CUDA device as well."""
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    try:
        with preserved_host_rng():
            yield
    finally:
        if devices is not None:
            torch.cuda.set_rng_state_all(devices)
