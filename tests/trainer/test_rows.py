"""The items that a batch of the past was made of, for each kind of data that is read by index."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler, TensorDataset, WeightedRandomSampler

from tolariad.trainer.data.loaders import feed_of

ROWS = 23


class Numbers(Dataset):
    """Item n is n."""

    def __len__(self):
        return ROWS

    def __getitem__(self, row):
        return torch.tensor(row)


def loaders():
    """Yield data whose item n is n, by name."""
    whole = TensorDataset(torch.arange(ROWS))
    yield "tensors", (torch.arange(ROWS),)
    yield "data set", Numbers()
    yield "loader", DataLoader(whole, batch_size=4, shuffle=True)
    yield "in order", DataLoader(Numbers(), batch_size=4)
    own = torch.Generator().manual_seed(3)
    yield "own generator", DataLoader(whole, batch_size=4, sampler=RandomSampler(whole, generator=own))
    yield "weights", DataLoader(whole, batch_size=4, sampler=WeightedRandomSampler(torch.ones(ROWS), ROWS))


def feed(data):
    return feed_of(data, batch_size=4, workers=0, rng_seed=11, shuffle=True)


def values(batch):
    return torch.as_tensor(batch[0] if isinstance(batch, (tuple, list)) else batch).tolist()


@pytest.mark.parametrize("name", [name for name, _ in loaders()])
def test_the_rows_of_a_batch_are_those_that_it_was_made_of(name):
    """Of every batch of three epochs, by a feed that has yielded nothing."""
    trained = feed(dict(loaders())[name])
    seen = [[values(batch) for batch in trained.epoch(epoch, 0)] for epoch in (1, 2, 3)]

    for epoch, batch in ((1, 1), (2, 3), (3, 6)):
        asked = feed(dict(loaders())[name])
        rows = asked.rows(epoch, batch)
        assert rows == seen[epoch - 1][batch - 1]
        item = asked.item(rows[0])
        assert int(item[0] if isinstance(item, tuple) else item) == rows[0]


def test_a_stream_has_no_rows():
    """It is not read by index."""

    class Stream:
        def __iter__(self):
            return iter([torch.zeros(2)] * 3)

    assert feed(Stream()).rows(1, 1) is None
