"""The price of exact data: seeding an item, the digest of a batch, the state in a checkpoint, the first start's check.

Everything is printed beside what it is compared to, in turns in one process. `Wrapped` is how items were seeded before:
a data set around the user's, whose keys are (epoch, index).
"""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from tests.trainer.data.samplers import SAMPLERS
from tolariad.trainer.data.digest import digest_of
from tolariad.trainer.data.loaders import feed_of
from tolariad.trainer.data.randomness import derived_seed, preserved_host_rng

ITEMS, ROUNDS = 4096, 15


class Rows(Dataset):
    """Items that cost next to nothing."""

    def __init__(self) -> None:
        self.x = torch.randn(ITEMS, 16)

    def __len__(self) -> int:
        return ITEMS

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.x[index]


class WithGenerator(Rows):
    """The same, with a generator of its own, which is seeded too."""

    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.default_rng(1)


class Wrapped(Dataset):
    """As items were seeded before. The generators were put back after each batch, as they are now."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getitem__(self, key: tuple[int, int]) -> Any:
        epoch, index = key
        seed = derived_seed(3, "item", epoch, index)
        random.seed(seed)
        np.random.seed(seed & 0xFFFF_FFFF)
        torch.default_generator.manual_seed(seed)
        return self.inner[index]


def fed(data: Any) -> Callable[[], None]:
    """Return what trains an epoch, without training."""
    feed = feed_of(DataLoader(data, 64, shuffle=True), batch_size=64, workers=0, rng_seed=3, shuffle=True)

    def epoch() -> None:
        for _ in feed.epoch(1, 0):
            pass

    return epoch


def wrapped(data: Any) -> Callable[[], None]:
    keys = [[(1, index) for index in batch.tolist()] for batch in torch.randperm(ITEMS).split(64)]
    loader = DataLoader(Wrapped(data), batch_sampler=keys)

    def epoch() -> None:
        with preserved_host_rng():
            batches = iter(loader)
        batch: Any = ()
        while batch is not None:
            with preserved_host_rng():
                batch = next(batches, None)

    return epoch


def plain(data: Any) -> Callable[[], None]:
    loader = DataLoader(data, 64, shuffle=True)

    def epoch() -> None:
        for _ in loader:
            pass

    return epoch


def took(work: Callable[[], Any]) -> float:
    """Microseconds of this thread's processor time."""
    begun = time.thread_time_ns()
    work()
    return (time.thread_time_ns() - begun) / 1e3


def in_turns(kinds: dict[str, Callable[[], Any]], rounds: int = ROUNDS) -> dict[str, float]:
    """Return the least of each kind, in microseconds: that which others on the machine disturbed least."""
    found: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(rounds):
        for kind, work in kinds.items():
            found[kind].append(took(work))
    return {kind: min(values) for kind, values in found.items()}


@pytest.mark.bench
def test_the_price_of_seeding_an_item_is_printed():
    """Microseconds an item, with the loader's own work. The seeded ones must not be dearer than the wrapper was."""
    torch.set_num_threads(1)
    found = in_turns(
        {
            "plain torch": plain(Rows()),
            "wrapper of before": wrapped(Rows()),
            "carriers": fed(Rows()),
            "carriers, a held generator": fed(WithGenerator()),
        }
    )
    print(f"\nload {os.getloadavg()[0]:.1f}, torch {torch.__version__}: us an item, batches of 64")
    for kind, value in found.items():
        print(f"{kind:28s}{value / ITEMS:8.2f}{(value - found['plain torch']) / ITEMS:+8.2f}")
    assert found["carriers"] < found["wrapper of before"]


IMAGE = (torch.randn(64, 3, 32, 32), torch.randint(10, (64,)))
BATCHES: dict[str, Any] = {
    "tuple of 2": IMAGE,
    "dict of 6": {str(number): torch.randint(100, (32, 128)) for number in range(6)},
    "arrays": tuple(one.numpy() for one in IMAGE),
    "list of 32 tensors": [torch.randn(3, 8, 8) for _ in range(32)],
    "not contiguous": (IMAGE[0].permute(0, 2, 3, 1), IMAGE[1]),
    "texts": ["word"] * 64,
}


@pytest.mark.bench
def test_the_price_of_a_digest_is_printed():
    """Microseconds a batch, least of several loops: 4 at most."""
    torch.set_num_threads(1)
    print(f"\nload {os.getloadavg()[0]:.1f}, torch {torch.__version__}: us a batch")
    for kind, batch in BATCHES.items():
        given = (batch,)

        def loop(given: tuple[Any, ...] = given) -> None:
            for _ in range(2000):
                digest_of(given)

        least = min(took(loop) for _ in range(ROUNDS)) / 2000
        print(f"{kind:28s}{least:8.2f}")
        assert digest_of(given)


@pytest.mark.bench
def test_the_price_of_a_state_and_of_the_check_is_printed():
    """Microseconds for the state in a checkpoint within an epoch, and milliseconds for the first start's check."""
    print(f"\nload {os.getloadavg()[0]:.1f}, torch {torch.__version__}: us a state, ms a check")
    for kind in ("shuffle", "OfNumpy", "Counting", "batches of one's own", "weights, a generator"):
        feed = feed_of(SAMPLERS[kind](), batch_size=4, workers=0, rng_seed=3, shuffle=True)
        running = feed.epoch(1, 0)
        next(running)
        state = statistics.median(took(feed.state) for _ in range(200))
        begun = time.perf_counter()
        feed.check(())
        print(f"{kind:28s}{state:8.1f}{(time.perf_counter() - begun) * 1e3:8.1f}")
        assert feed.state()["taken"] == 1
