"""Samplers of the kinds that people have."""

from __future__ import annotations

import itertools
import random

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

N = 14


class Plain(Dataset):
    """Each item is its index and draws from the process-wide generators."""

    def __init__(self, length=N):
        self.length, self.hard = length, [1.0] * length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return torch.tensor([float(index), random.random(), np.random.rand(), torch.rand(()).item()]).double()


# -- samplers ----------------------------------------------------------------------------------------------------------


class _Sampler(Sampler):
    def __init__(self):
        pass

    def __len__(self):
        return N


class OfNumpy(_Sampler):
    def __init__(self):
        self.rng = np.random.default_rng(3)

    def __iter__(self):
        return iter(self.rng.permutation(N).tolist())


class OfNumpyLazily(OfNumpy):
    def __iter__(self):
        for _ in range(N):
            yield int(self.rng.integers(N))


class OfPython(_Sampler):
    def __init__(self):
        self.rng = random.Random(3)

    def __iter__(self):
        order = list(range(N))
        self.rng.shuffle(order)
        yield from order


class OfLegacy(_Sampler):
    def __init__(self):
        self.rng = np.random.RandomState(3)

    def __iter__(self):
        yield from self.rng.permutation(N).tolist()


class Counting(_Sampler):
    def __init__(self):
        self.epoch = 0

    def __iter__(self):
        self.epoch += 1
        yield from np.random.default_rng(self.epoch).permutation(N).tolist()


class CountingByIterator(_Sampler):
    def __init__(self):
        self.counter = itertools.count(5)

    def __iter__(self):
        return iter(np.random.default_rng(next(self.counter)).permutation(N).tolist())


class InPlace(_Sampler):
    def __init__(self):
        self.order = list(range(N))

    def __iter__(self):
        random.shuffle(self.order)
        return iter(self.order)


class ArrayInPlace(_Sampler):
    def __init__(self):
        self.order = np.arange(N)

    def __iter__(self):
        np.random.shuffle(self.order)
        yield from self.order.tolist()


class WithState(OfNumpy):
    """Its state_dict says a position: loaded at an epoch's end it would leave nothing for the next one."""

    def __init__(self):
        super().__init__()
        self.at = self.next_at = 0

    def __iter__(self):
        self.at, self.next_at = self.next_at, 0
        for index in self.rng.permutation(N).tolist()[self.at :]:
            self.at += 1
            yield index

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.next_at = state["at"]


class Slotted(_Sampler):
    __slots__ = ("rng",)

    def __init__(self):
        self.rng = random.Random(9)

    def __iter__(self):
        return iter(self.rng.sample(range(N), N))


class MadeLater(_Sampler):
    def __init__(self):
        self.rng, self.seed = None, 3

    def __iter__(self):
        if self.rng is None:
            self.rng = np.random.default_rng(self.seed)
        return iter(self.rng.permutation(N).tolist())


class OfItsClass(_Sampler):
    rng = np.random.default_rng(9)
    times = 0

    def __iter__(self):
        type(self).times += 1
        return iter(np.roll(self.rng.permutation(N), type(self).times).tolist())


OF_MODULE = np.random.default_rng(77)


class OfItsModule(_Sampler):
    def __iter__(self):
        return iter(OF_MODULE.permutation(N).tolist())


class HoldingAnIterator(_Sampler):
    def __init__(self):
        self.orders = self._all()

    def _all(self):
        rng = random.Random(1)
        while True:
            yield rng.sample(range(N), N)

    def __iter__(self):
        return iter(next(self.orders))


class Wrapped(_Sampler):
    def __init__(self, inner):
        self.inner = inner

    def __iter__(self):
        yield from self.inner


class OwnBatches(Sampler):
    """Batches of 4 in one epoch, of 5 in the next."""

    def __init__(self, inner):
        self.inner, self.epochs = inner, 0

    def __len__(self):
        return (N + 3) // 4

    def __iter__(self):
        self.epochs += 1
        batch = []
        for index in self.inner:
            batch.append(index)
            if len(batch) == 4 + self.epochs % 2:
                yield batch
                batch = []
        if batch:
            yield batch


class Mined(_Sampler):
    """A generator function over weights that training moves."""

    def __init__(self):
        self.weights, self.rng = [1.0] * N, random.Random(5)

    def __iter__(self):
        yield from self.rng.choices(range(N), self.weights, k=N)


class MinedWhileDrawing(_Sampler):
    def __init__(self):
        self.weights = [1.0] * N

    def __iter__(self):
        for _ in range(N):
            yield random.choices(range(N), self.weights)[0]


class MinedFromData(_Sampler):
    def __init__(self, data):
        self.data, self.rng = data, random.Random(5)

    def __iter__(self):
        yield from self.rng.choices(range(N), self.data.hard, k=N)


class OfTheClock(_Sampler):
    def __iter__(self):
        yield from np.random.default_rng().permutation(N).tolist()


def closure():
    rng = np.random.default_rng(3)

    class Closed(_Sampler):
        def __iter__(self):
            return iter(rng.permutation(N).tolist())

    return Closed()


def seeded():
    return torch.Generator().manual_seed(5)


def _by(sampler, **more):
    return lambda **options: DataLoader(Plain(), 4, sampler=sampler(), **more, **options)


def _mined_from_data(**options):
    data = Plain()
    return DataLoader(data, 4, sampler=MinedFromData(data), **options)


SAMPLERS = {
    "shuffle": lambda **options: DataLoader(Plain(), 4, shuffle=True, **options),
    "the loader's generator": lambda **options: DataLoader(Plain(), 4, shuffle=True, generator=seeded(), **options),
    "a generator of torch": _by(lambda: RandomSampler(range(N), generator=seeded())),
    "replacement": _by(lambda: RandomSampler(range(N), replacement=True, num_samples=N, generator=seeded())),
    "a subset": _by(lambda: SubsetRandomSampler(range(N), generator=seeded())),
    "weights of torch": _by(lambda: WeightedRandomSampler([1.0] * N, N)),
    "weights, a generator": _by(lambda: WeightedRandomSampler([1.0] * N, N, generator=seeded())),
    **{
        kind.__name__: _by(kind)
        for kind in (OfNumpy, OfNumpyLazily, OfPython, OfLegacy, Counting, CountingByIterator, InPlace, ArrayInPlace)
    },
    **{kind.__name__: _by(kind) for kind in (WithState, Slotted, MadeLater, OfItsClass, OfItsModule, Mined)},
    **{kind.__name__: _by(kind) for kind in (MinedWhileDrawing, HoldingAnIterator)},
    "a closure": _by(closure),
    "wrapped": _by(lambda: Wrapped(OfNumpy())),
    "three deep": _by(lambda: Wrapped(Wrapped(Wrapped(OfPython())))),
    "weights, wrapped": _by(lambda: Wrapped(WeightedRandomSampler([1.0] * N, N, generator=seeded()))),
    "batches of one's own": lambda **options: DataLoader(
        Plain(), batch_sampler=OwnBatches(Wrapped(OfNumpy())), **options
    ),
    "torch's batches": lambda **options: DataLoader(
        Plain(), batch_sampler=BatchSampler(OfNumpy(), 4, drop_last=False), **options
    ),
    "weights in the data": _mined_from_data,
    "a list that a hook changes": _by(lambda: list(range(N))),
    "no batches": lambda **options: DataLoader(Plain(), None, sampler=OfNumpy(), **options),
    "drop_last": _by(OfNumpy, drop_last=True),
}


def move(loader, batch):
    """What a hook does after a batch: the weights of its first index grow."""
    sampler = loader.batch_sampler.sampler if isinstance(loader.batch_sampler, BatchSampler) else loader.batch_sampler
    index = int(batch.reshape(-1)[0])
    if isinstance(sampler, list):
        sampler.append(sampler.pop(index))
        return
    while sampler is not None:
        weights = getattr(sampler, "weights", None)
        if isinstance(sampler, MinedFromData):
            weights = sampler.data.hard
        if weights is not None:
            weights[index] += 1.5
        sampler = getattr(sampler, "inner", None)


def as_in_a_new_process():
    """Give classes and module the generators that the script makes."""
    OfItsClass.rng, OfItsClass.times = np.random.default_rng(9), 0
    globals()["OF_MODULE"] = np.random.default_rng(77)
