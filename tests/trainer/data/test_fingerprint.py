"""Fingerprints of data: by the items only, cheap, and without a trace."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from tolariad.trainer.data.fingerprint import of_items
from tolariad.trainer.data.loaders import feed_of


class Rows(Dataset):
    """A map-style data set that augments, counts what is read, and has a generator of its own."""

    def __init__(self, rows=100, *, add=0.0):
        self.rows, self.add, self.read, self.read_one = rows, add, 0, int
        self.inner = {"generators": [np.random.default_rng(3), torch.Generator().manual_seed(4), random.Random(5)]}

    def __len__(self):
        return self.rows

    def __getitem__(self, index):
        self.read += 1
        self.read_one(index)
        numpy, torchs, python = self.inner["generators"]
        drawn = numpy.random() + torch.rand((), generator=torchs) + python.random() + random.random()
        image = torch.full((3, 4), float(index)) + torch.rand(3, 4) + drawn
        return {"image": image + self.add * (index == 99), "name": f"{index}.png", "box": np.arange(index, index + 4)}


def print_of(data, **more):
    options = {"batch_size": 4, "workers": 0, "rng_seed": 7, "shuffle": True}
    return feed_of(data, **{**options, **more}).fingerprint()


def test_it_is_of_the_items_and_not_of_the_loader():
    """Batch size, order, workers and seed change nothing; an item does, and so does the length."""
    known = print_of(Rows())
    assert known.length == 100
    assert len(set(known.items)) == 8
    assert print_of(Rows(), batch_size=7, rng_seed=8, shuffle=False) == known
    assert print_of(DataLoader(Rows(), 16, shuffle=True, num_workers=2)) == known
    assert print_of(Rows(add=1.0)).items[:-1] == known.items[:-1]
    assert print_of(Rows(add=1.0)) != known
    assert print_of(Rows(101)) != known


def test_tensors_are_compared_by_their_rows():
    """In whatever way they are given."""
    data = torch.arange(20.0).reshape(10, 2), torch.arange(10)
    known = print_of(data)
    assert (known.length, len(known.items)) == (10, 8)
    assert print_of(torch.utils.data.TensorDataset(*data), batch_size=3) == known
    other = data[0].clone()
    other[-1, -1] += 1e-6
    assert print_of((other, data[1])).items[-1] != known.items[-1]


def test_it_draws_nothing_and_reads_a_few_items_only():
    """Neither from the process-wide generators nor from those that the data set holds."""
    data = Rows(100_000)
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    own = [str(data.inner["generators"][0].bit_generator.state), data.inner["generators"][2].getstate()]
    generator = data.inner["generators"][1].get_state()
    read = []
    data.read_one = read.append
    print_of(torch.utils.data.Subset(data, range(100_000)))
    assert (len(read), data.read) == (9, 0)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == states[1:]
    numpy, torchs, python = data.inner["generators"]
    assert [str(numpy.bit_generator.state), python.getstate()] == own
    assert torch.equal(torchs.get_state(), generator)


def test_what_workers_read_is_not_read_here():
    """A file that was opened here would be shared by all workers of training."""
    data = Rows()
    print_of(DataLoader(data, 4, num_workers=1))
    assert data.read == 0


def test_items_that_differ_at_each_reading_are_left_out():
    """Such data are other data at every start; their length still counts."""

    class Clock(Rows):
        def __getitem__(self, index):
            return next(self.ticks)

    data = Clock()
    data.ticks = iter(range(1000))
    found = print_of(data)
    assert (found.length, found.items) == (100, ())


def test_an_item_that_cannot_be_read_is_left_out():
    """Training may never use it."""

    class Holes(Rows):
        def __getitem__(self, index):
            if index == 0:
                raise FileNotFoundError(index)
            return super().__getitem__(index)

    assert [bool(item) for item in print_of(Holes()).items] == [False] + [True] * 7


class Stream(IterableDataset):
    def __iter__(self):
        raise AssertionError("it must not be read")


class Stateful(Rows):
    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


@pytest.mark.parametrize(
    ("data", "length"),
    [(Stream(), None), (DataLoader(Stream(), 4), None), (Stateful(), 100)],
    ids=["iterable", "loader", "stateful"],
)
def test_data_with_a_position_are_not_read(data, length):
    """Reading could change what they yield next."""
    found = print_of(data)
    assert (found.length, found.items) == (length, ())


@pytest.mark.parametrize("length", [1, 2, 8, 9])
def test_short_data_are_read_whole(length):
    """The first item and the last one are always compared."""
    read = []
    of_items(length, lambda index: read.append(index) or index)
    assert (min(read), max(read)) == (0, length - 1)
    assert len(set(read)) == min(8, length)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0),
        ([1, 2], [12]),
        ({"a": 1}, {"b": 1}),
        (np.float32(1), np.float64(1)),
        (torch.zeros(2), torch.zeros(2, 1)),
        (torch.tensor(0.0), torch.tensor(-0.0)),
        ("1", b"1"),
        (np.array([None, 1], dtype=object), np.array([None, 2], dtype=object)),
    ],
    ids=str,
)
def test_different_items_have_different_hashes(one, other):
    """Types, shapes and bits count."""
    assert of_items(1, lambda _: one) == of_items(1, lambda _: one)
    assert of_items(1, lambda _: one) != of_items(1, lambda _: other)
