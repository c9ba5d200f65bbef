"""A rank's share of the batches: the list is that of one process, each batch is read once, and a resume goes on."""

from __future__ import annotations

import random

import pytest
import torch
from torch.utils.data import DataLoader

from tolariad.trainer.data.loaders import feed_of
from tolariad.trainer.data.share import ELSEWHERE, Share

ROWS = torch.arange(27.0)


class Counted(torch.utils.data.Dataset):
    """Notes which items are read."""

    def __init__(self):
        self.read = []

    def __len__(self):
        return 27

    def __getitem__(self, index):
        self.read.append(index)
        return ROWS[index]


def feed(kind, dataset=None, workers=0):
    data = (ROWS,)
    if kind == "loader":
        generator = torch.Generator().manual_seed(1)
        data = DataLoader(dataset or Counted(), 2, shuffle=True, generator=generator, num_workers=workers)
    return feed_of(data, batch_size=2, workers=0, rng_seed=3, shuffle=True)


def values(batches):
    """Return the rows of each batch; None for one of another rank."""
    plain = [batch if batch is ELSEWHERE or torch.is_tensor(batch) else batch[0] for batch in batches]
    return [None if batch is ELSEWHERE else batch.tolist() for batch in plain]


@pytest.mark.parametrize("kind", ["tensors", "loader"])
def test_the_shares_of_all_ranks_are_the_batches_of_one_process(kind):
    """Every batch at its place, read by one rank; a rank without one of the last group reads the group's first too."""
    seed = random.randrange(2**32)
    draw = random.Random(seed)
    ranks, accumulate, epoch = draw.randint(2, 5), draw.randint(1, 3), draw.randint(1, 3)
    whole = values(feed(kind).epoch(epoch, 0))
    shares = []
    for rank in range(ranks):
        one = feed(kind)
        assert one.shared_out(Share(rank, ranks, accumulate))
        shares.append(values(one.epoch(epoch, 0)))
    begin = (len(whole) - 1) // (ranks * accumulate) * ranks * accumulate

    for number, batch in enumerate(whole):
        mine = [share[number] for share in shares]
        assert mine[number % ranks] == batch, seed
        readers = [rank for rank, one in enumerate(mine) if one is not None]
        again = [rank for rank in range(ranks) if number == begin and begin + rank >= len(whole)]
        assert readers == sorted({number % ranks, *again}), seed
    assert {len(share) for share in shares} == {len(whole)}, seed
    assert all(any(one is not None for one in share[begin:]) for share in shares), seed


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.torture)])
def test_a_share_goes_on_at_a_checkpoint_and_reads_no_item_of_another_rank(workers):
    """At every boundary of a step, with the state that a checkpoint has."""
    seed = random.randrange(2**32)
    share = Share(random.Random(seed).randrange(2), 2)
    plain = feed("loader", workers=workers)
    plain.shared_out(share)
    whole = values(plain.epoch(1, 0))
    begun = feed("loader", workers=workers)
    begun.shared_out(share)
    batches = begun.epoch(1, 0)
    taken = values(next(batches) for _ in range(6))
    state = begun.state()
    dataset = Counted()
    resumed = feed("loader", dataset, workers)
    resumed.shared_out(share)
    resumed.load_state(state)
    rest = resumed.epoch(1, 6)
    # The state of the data set comes back too.
    before = len(dataset.read)
    left = values(rest)

    assert taken + left == whole, seed
    assert not resumed.findings
    if not workers:
        assert len(dataset.read) - before == sum(len(one) for one in left if one is not None), seed


@pytest.mark.parametrize(
    ("number", "batches", "ranks"), [(n, b, r) for r in (2, 3, 4) for b in (1, 5, 8) for n in (0, 1, b)]
)
def test_what_a_rank_has_read_before_a_place_is_counted(number, batches, ranks):
    """Workers take turns by it."""
    for rank in range(ranks):
        share = Share(rank, ranks, 2)
        assert share.before(number, batches) == sum(share.takes(one, batches) for one in range(number))


def test_data_that_can_only_be_iterated_over_are_not_shared_out():
    """Nobody knows what another rank would get."""
    assert not feed_of(iter_of(), batch_size=2, workers=0, rng_seed=3, shuffle=False).shared_out(Share(0, 2))


def iter_of():
    """Return data that are iterated over."""

    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(ROWS)

    return Stream()
