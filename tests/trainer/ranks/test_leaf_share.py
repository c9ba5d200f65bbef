"""A rank's leaves of an epoch: every batch is read by one rank, at the place that it has in one process."""

from __future__ import annotations

import random

import pytest
import torch
from torch.utils.data import DataLoader

from tests.trainer.data.test_share import ROWS, Counted, feed, values
from tolariad.trainer.data.feed import Bearing
from tolariad.trainer.data.loaders import feed_of
from tolariad.trainer.data.share import ELSEWHERE
from tolariad.trainer.ranks.exact.leaf_share import LeafShare
from tolariad.trainer.ranks.exact.order import block


def drawn(seed):
    """Return numbers of ranks and leaves: at most as many ranks."""
    draw = random.Random(seed)
    leaves = draw.randint(1, 7)
    return draw.randint(1, leaves), leaves, draw


def shared(kind, share, workers=0, dataset=None):
    one = feed(kind, dataset, workers)
    assert one.shared_out(share)
    return one


@pytest.mark.parametrize("kind", ["tensors", "loader"])
def test_the_leaves_of_all_ranks_are_the_batches_of_one_process(kind):
    """Each step's blocks, those of the last and smaller one too."""
    seed = random.randrange(2**32)
    ranks, leaves, draw = drawn(seed)
    epoch = draw.randint(1, 3)
    whole = values(feed(kind).epoch(epoch, 0))
    shares = [values(shared(kind, LeafShare(rank, ranks, leaves)).epoch(epoch, 0)) for rank in range(ranks)]

    for number, batch in enumerate(whole):
        begin = number // leaves * leaves
        count = min(leaves, len(whole) - begin)
        for rank, share in enumerate(shares):
            mine = number - begin in block(count, ranks, rank)
            assert share[number] == (batch if mine else None), seed
    assert {len(share) for share in shares} == {len(whole)}, seed


def test_what_was_read_before_a_place_and_what_was_drawn_ahead_is_counted():
    """Workers take turns by the one, and a checkpoint keeps the other."""
    for seed in range(200):
        ranks, leaves, draw = drawn(seed)
        batches = draw.randint(1, 40)
        for rank in range(ranks):
            share = LeafShare(rank, ranks, leaves)
            mine = [number for number in range(batches) if share.takes(number, batches)]
            for number in range(batches + 1):
                assert share.before(number, batches) == sum(one < number for one in mine), (seed, rank, number)
            for begin in range(0, batches, leaves):
                ahead = [number for number in mine if number >= begin]
                for own in range(1, len(ahead) + 1):
                    # The step of the last one is drawn whole.
                    end = ahead[own - 1] // leaves * leaves + leaves
                    assert share.span(own) >= end - begin, (seed, rank, own)


class Still(Counted):
    """Is the same after it was read."""

    def __getitem__(self, index):
        return ROWS[index]


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.torture)])
def test_any_number_of_ranks_goes_on_from_the_state_of_rank_0(workers):
    """At a boundary within an epoch. No item of another rank is read."""
    seed = random.randrange(2**32)
    draw = random.Random(seed)
    leaves, after = draw.randint(3, 5), draw.randint(1, 2)
    whole = values(feed("loader").epoch(1, 0))
    begun = shared("loader", LeafShare(0, 3, leaves), workers, Still())
    batches = begun.epoch(1, 0)
    for _ in range(after * leaves):
        next(batches)
    state = begun.state()
    assert not begun.findings, seed

    for ranks in (2, 1):
        for rank in range(ranks):
            dataset, share = Counted(), LeafShare(rank, ranks, leaves)
            resumed = shared("loader", share, workers, dataset)
            resumed.load_state(state)
            rest = resumed.epoch(1, after * leaves)
            before = len(dataset.read)
            left = values(rest)
            expected = [
                batch if share.takes(number, len(whole)) else None
                for number, batch in enumerate(whole)
                if number >= after * leaves
            ]
            assert left == expected, (seed, ranks, rank)
            assert not resumed.findings, seed
            if not workers:
                assert len(dataset.read) - before == sum(len(one) for one in left if one is not None), seed


def test_ranks_in_another_order_have_another_digest():
    """Those in the same order have the same one, though each reads its own batches; 0 where a rank reads none."""
    found = {}
    for name, order in (("one", 1), ("same", 1), ("other", 2)):
        for rank in range(3):
            loader = DataLoader(Counted(), 2, shuffle=True, generator=torch.Generator().manual_seed(order))
            one = feed_of(loader, batch_size=2, workers=0, rng_seed=3, shuffle=True)
            assert one.shared_out(LeafShare(rank, 3, 4))
            batches = one.epoch(1, 0)
            digests = []
            for step in range(0, 12, 4):
                for _ in range(4):
                    next(batches)
                digests.append(one.order_digest(step + 4))
            found[name, rank] = digests
    assert len({tuple(found[name, rank]) for name in ("one", "same") for rank in range(3)}) == 1
    assert all(a != b for a, b in zip(found["one", 0], found["other", 0], strict=True))
    assert 0 not in found["one", 0]


class Counting(Counted):
    """Counts what it has read, and gives another item by it."""

    reads = 0

    def __getitem__(self, index):
        self.reads += 1
        return ROWS[index] + self.reads


def test_a_data_set_that_changes_as_it_is_read_is_named():
    """Each rank's copy counts its own reads."""
    one = shared("loader", LeafShare(0, 2, 4), dataset=Counting())
    batches = one.epoch(1, 0)
    assert [next(batches) is ELSEWHERE for _ in range(4)] == [False, False, True, True]
    one.state()

    (finding,) = one.take_findings()
    assert finding.bearing is Bearing.INEXACT
    assert "dataset.reads" in finding.words
