"""Data sets, streams and loaders of the kinds that people have."""

from __future__ import annotations

import functools
import itertools
import random
import threading
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    get_worker_info,
)

from tests.trainer.data.samplers import N

# -- data sets ---------------------------------------------------------------------------------------------------------


class Sendable(Dataset):
    """Draws from every kind of generator that it holds, and can be pickled."""

    torch = None

    def __init__(self):
        self.numpy, self.python = np.random.default_rng(3), random.Random(1)
        self.inner, self.read = {"a": [np.random.RandomState(3)]}, 0

    def __len__(self):
        return N

    def __getitem__(self, index):
        worker = get_worker_info()
        assert worker is None or worker.dataset is self, "something stands in for the data set"
        assert type(index) is int
        self.read += 1
        drawn = [random.random(), np.random.rand(), torch.rand(()).item(), self.numpy.random(), self.python.random()]
        if self.torch is not None:
            drawn.append(torch.rand((), generator=self.torch).item())
        return torch.tensor([index, *drawn, self.inner["a"][0].rand()], dtype=torch.float64)


OPEN = Path(__file__).open("rb")  # noqa: SIM115


class Holding(Sendable):
    """With a generator, a lock and an open file, which cannot be pickled."""

    def __init__(self):
        super().__init__()
        self.torch, self.lock, self.file = torch.Generator(), threading.Lock(), OPEN


class OnlyItems(Holding):
    def __getitem__(self, index):
        raise NotImplementedError

    def __getitems__(self, indices):
        assert type(indices) is list
        return [Holding.__getitem__(self, index) for index in indices]


class MadeAtFirstRead(Holding):
    def __init__(self):
        super().__init__()
        self.numpy = None

    def __getitem__(self, index):
        if self.numpy is None:
            self.numpy = np.random.default_rng(3)
        return super().__getitem__(index)


@dataclass(slots=True)
class Noise:
    rng: object

    def __call__(self, value):
        return value + self.rng.random()


class Transformed(Dataset):
    """Its transforms hold the generators: in a slot, in a partial function, in a closure."""

    def __init__(self):
        rng = np.random.default_rng(7)
        partial = functools.partial(lambda value, rng: value + rng.random(), rng=random.Random(2))
        self.transforms = [Noise(np.random.default_rng(4)), partial, lambda value: value + rng.random()]

    def __len__(self):
        return N

    def __getitem__(self, index):
        value = torch.tensor([float(index)], dtype=torch.float64)
        for transform in self.transforms:
            value = transform(value)
        return value


OF_COLLATE = np.random.default_rng(8)


def mixing(items, rng=OF_COLLATE):
    """A collate function with a generator in its defaults."""
    mixed = torch.full((1, items[0].numel()), rng.random() + random.random(), dtype=torch.float64)
    return torch.cat([torch.stack(items), mixed])


class Told(Dataset):
    """Knows its epoch only by set_epoch."""

    epoch = 0

    def __len__(self):
        return N

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __getitem__(self, index):
        return torch.tensor([index, self.epoch])


# -- streams -----------------------------------------------------------------------------------------------------------


def _part(indices):
    worker = get_worker_info()
    return indices if worker is None else indices[worker.id :: worker.num_workers]


class Shuffled(IterableDataset):
    """Shuffles in `__iter__`, and holds a generator."""

    def __init__(self):
        self.rng = np.random.default_rng(3)

    def __iter__(self):
        for index in _part(torch.randperm(N).tolist()):
            yield torch.tensor([index, self.rng.random(), random.random()], dtype=torch.float64)


class ToldStream(IterableDataset):
    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        for index in _part(np.random.default_rng(self.epoch).permutation(N).tolist()):
            yield torch.tensor([index, self.epoch])


class CountingStream(IterableDataset):
    """Never the same again: it counts on."""

    def __init__(self):
        self.at = 0

    def __iter__(self):
        for _ in range(N):
            self.at += 1
            yield torch.tensor([self.at])


class KeptStream(IterableDataset):
    """Says itself where it is."""

    def __init__(self):
        self.at = self.all = 0

    def __iter__(self):
        while self.at < N:
            self.at, self.all = self.at + 1, self.all + 1
            yield torch.tensor([self.at, self.all])
        self.at = 0

    def state_dict(self):
        return {"at": self.at, "all": self.all}

    def load_state_dict(self, state):
        self.at, self.all = state["at"], state["all"]


# -- loaders -----------------------------------------------------------------------------------------------------------


class Scaling(DataLoader):
    def __iter__(self):
        for batch in super().__iter__():
            yield batch / 100


class FirstTwo(DataLoader):
    def __iter__(self):
        return itertools.islice(super().__iter__(), 2)

    def __len__(self):
        return 2


class Getter(DataLoader):
    def _get_iterator(self):
        return map(torch.neg, super()._get_iterator())


class Filtering(DataLoader):
    def __iter__(self):
        for batch in super().__iter__():
            if int(batch[0, 0]) % 2:
                yield batch


class LookingAhead(DataLoader):
    def __iter__(self):
        iterator = super().__iter__()
        following = next(iterator, None)
        while following is not None:
            current, following = following, next(iterator, None)
            yield current


class ByHand(DataLoader):
    def __iter__(self):
        for indices in self.batch_sampler:
            assert isinstance(indices, list)
            yield self.collate_fn([self.dataset[index] for index in indices])


class WithAttribute(DataLoader):
    def __init__(self, *given, tag="x", **more):
        super().__init__(*given, **more)
        self.tag = tag


class Around:
    """An object of the user's around a loader."""

    def __init__(self, loader):
        self.loader, self.seen = loader, 0

    def __len__(self):
        return len(self.loader)

    def __iter__(self):
        for batch in self.loader:
            self.seen += 1
            yield torch.cat([batch, torch.full_like(batch[:1], self.seen)])


class ItsOwnIterator:
    """Begins anew in `__iter__`, and is its own iterator, as prefetchers are."""

    def __init__(self, loader):
        self.loader, self.running = loader, None

    def __iter__(self):
        self.running = iter(self.loader)
        return self

    def __next__(self):
        return next(self.running) * 2


class Both:
    def __init__(self, one, other):
        self.loaders = {"one": one, "other": other}

    def __iter__(self):
        for pair in zip(*self.loaders.values(), strict=False):
            yield torch.cat(pair)


class OneAfterTheOther:
    def __init__(self, *loaders):
        self.loaders = loaders

    def __iter__(self):
        return itertools.chain(*self.loaders)


class HalfLabelled:
    """Takes the shorter loader again when it is at its end."""

    def __init__(self, one, other):
        self.one, self.other = one, other

    def __iter__(self):
        others = iter(self.other)
        for batch in self.one:
            other = next(others, None)
            if other is None:
                others = iter(self.other)
                other = next(others)
            yield torch.cat([batch, other])
