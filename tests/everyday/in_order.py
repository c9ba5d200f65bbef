"""Run a script with the order of batches and the random numbers of a run that has the seed 0.

A plain script shuffles, and draws, from generators that it seeded once. A run orders the batches of an epoch by (seed,
epoch), and seeds the generators when training begins. With both the same, the arithmetic can be compared bit for bit.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler

from tolariad.trainer.data.feed import Feed
from tolariad.trainer.data.loaders import feed_of
from tolariad.trainer.data.order import Order
from tolariad.trainer.data.randomness import derived_seed, seed_everything

RNG_SEED = 0


class _Unordered:
    """An iterable loader, as it is without what is done here."""

    def __init__(self, loader: DataLoader[Any], iterate: Any) -> None:
        self._loader, self._iterate = loader, iterate

    def __iter__(self) -> Iterator[Any]:
        return self._iterate(self._loader)


def order_batches() -> None:
    """Let loaders for training, which shuffle, stream or have a batch sampler, yield the batches of a run."""
    iterate, feeds, epochs = DataLoader.__iter__, {}, {}

    def ordered(loader: DataLoader[Any]) -> Iterator[Any]:
        streams = isinstance(loader.dataset, IterableDataset)
        own = not isinstance(loader.batch_sampler, BatchSampler | Order | None)
        if not streams and not own and not isinstance(loader.sampler, RandomSampler):
            return iterate(loader)
        data = _Unordered(loader, iterate) if streams else loader
        feed: Feed = feeds.setdefault(loader, feed_of(data, batch_size=1, workers=0, rng_seed=RNG_SEED, shuffle=True))
        epochs[loader] = epochs.get(loader, 0) + 1
        return feed.epoch(epochs[loader], 0)

    DataLoader.__iter__ = ordered


def seed_at_the_optimizer() -> None:
    """Seed the generators when an optimizer is made: each script makes its last one directly before its loop."""
    make = torch.optim.Optimizer.__init__

    def making(self: torch.optim.Optimizer, *given: Any, **more: Any) -> None:
        make(self, *given, **more)
        seed_everything(derived_seed(RNG_SEED, "training"))

    torch.optim.Optimizer.__init__ = making


if __name__ == "__main__":
    # A run obeys OMP_NUM_THREADS; torch has read it when the template process was started.
    torch.set_num_threads(1)
    order_batches()
    seed_at_the_optimizer()
    runpy.run_path(sys.argv[1], run_name="__main__")
