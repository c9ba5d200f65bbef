"""The order of an epoch is the plain loop's, and a resume at any place goes on with it: for every kind of sampler."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader

from tests.trainer.data.samplers import SAMPLERS, N, OfNumpy, OfPython, OfTheClock, OwnBatches, Plain, seeded
from tests.trainer.data.stops import differing_stops, feed_over, taken, through_a_checkpoint
from tolariad.trainer.data.feed import Bearing
from tolariad.trainer.data.loaders import LoaderFeed
from tolariad.trainer.data.order import packed, unpacked

IN_WORKERS = ["the loader's generator", "OfPython", "weights in the data", "MinedWhileDrawing", "batches of one's own"]


@pytest.mark.parametrize("kind", SAMPLERS)
def test_a_resume_at_any_batch_goes_on_in_the_same_order(kind):
    """In a new process, to the end of the epoch and through the next; hooks move the weights of those that have any."""
    differing, found, whole = differing_stops(SAMPLERS[kind], None, moves=True)
    assert differing == []
    assert whole[1] != whole[2], "the epochs do not differ, so nothing was shown"
    assert not [finding for finding in found if finding.bearing is Bearing.INEXACT]


@pytest.mark.parametrize("kind", IN_WORKERS)
def test_what_workers_had_drawn_ahead_is_trained_on_and_then_the_order_goes_on(kind):
    """Two workers are six batches ahead of training when the checkpoint is taken."""
    stops = [(1, 1), (2, 2)]
    differing, _, _ = differing_stops(SAMPLERS[kind], stops, moves=True, num_workers=2)
    assert differing == []


# These draw their order from the process-wide generators, whose seed is the run's.
FROM_ALL = ("shuffle", "a list that a hook changes", "weights of torch", "InPlace", "ArrayInPlace", "MinedWhileDrawing")


@pytest.mark.parametrize("kind", [kind for kind in SAMPLERS if kind not in FROM_ALL])
def test_the_order_is_that_of_the_plain_loop(kind):
    """The user's seed is kept; what torch draws from the loader's generator for its workers is drawn too."""

    def indices(batch):
        return batch.reshape(-1, 4)[:, 0].tolist()

    _, feed = feed_over(SAMPLERS[kind])
    found = [indices(torch.tensor(batch)) for epoch in (1, 2, 3) for batch in taken(feed, epoch)]
    plain, _ = feed_over(SAMPLERS[kind])
    assert found == [indices(batch) for _ in range(3) for batch in plain]


def test_an_order_that_cannot_be_drawn_again_is_stored_and_said():
    """Within an epoch the resume is exact; the orders of later epochs are named as inexact at the first start."""

    def make(**options):
        return DataLoader(Plain(), 4, sampler=OfTheClock(), **options)

    for options in ({}, {"num_workers": 2}):
        _, feed = feed_over(make, checked=True, **options)
        (found,) = feed.findings
        assert found.bearing is Bearing.INEXACT
        assert "OfTheClock" in found.words
        whole = taken(feed, 1)
        _, feed = feed_over(make, checked=True, **options)
        running = feed.epoch(1, 0)
        whole = [next(running).tolist()]
        state = through_a_checkpoint(feed.state())
        whole += [batch.tolist() for batch in running]
        _, resumed = feed_over(make, **options)
        resumed.load_state(state)
        assert taken(resumed, 1, 1) == whole[1:]
        assert not resumed.findings


def test_an_order_that_differs_without_a_check_is_named_at_the_resume():
    """A sampler may repeat itself when it is tried, and not later."""

    def make(**options):
        return DataLoader(Plain(), 4, sampler=OfTheClock(), **options)

    _, feed = feed_over(make)
    next(feed.epoch(1, 0))
    state = through_a_checkpoint(feed.state())
    _, resumed = feed_over(make)
    resumed.load_state(state)
    assert len(taken(resumed, 1, 1)) == 3
    (found,) = resumed.findings
    assert found.bearing is Bearing.INEXACT
    assert "drawn again" in found.words


def test_a_batch_size_that_moves_within_an_epoch_is_named():
    """The draw again takes other numbers of indices, so that the sampler stands elsewhere."""

    def make():
        return LoaderFeed(DataLoader(Plain(), 2, shuffle=True), 3)

    feed = make()
    running = feed.epoch(1, 0)
    next(running)
    feed._data.batch_sampler.batch_size = 3
    next(running)
    resumed = make()
    resumed.load_state(through_a_checkpoint(feed.state()))
    taken(resumed, 1, 2)
    assert [finding.bearing for finding in resumed.findings] == [Bearing.INEXACT]


class Endless(OfNumpy):
    drawn = 0

    def __iter__(self):
        while True:
            self.drawn += 1
            yield int(self.rng.integers(N))


@pytest.mark.parametrize(("workers", "ahead"), [(0, 0), (2, 4)])
def test_an_endless_sampler_is_never_listed(workers, ahead):
    """It is drawn from as far as the loader asks, and resumed within."""
    sampler = Endless()
    feed = LoaderFeed(DataLoader(Plain(), 4, sampler=sampler, num_workers=workers), 3)
    running = feed.epoch(1, 0)
    for _ in range(5):
        next(running)
    assert sampler.drawn == 4 * (5 + ahead)
    state = through_a_checkpoint(feed.state())
    following = [next(running).tolist() for _ in range(6)]
    resumed = LoaderFeed(DataLoader(Plain(), 4, sampler=Endless(), num_workers=workers), 3)
    resumed.load_state(state)
    running = resumed.epoch(1, 5)
    assert [next(running).tolist() for _ in range(6)] == following


def test_what_the_script_changes_counts_if_training_never_moved_it():
    """A batch size that the user changed between two starts is used. A seed that the script draws anew is said."""

    class WithSeed(OfPython):
        def __init__(self, seed):
            super().__init__()
            self.seed = seed

    def feed(seed, size):
        return LoaderFeed(DataLoader(Plain(), size, sampler=WithSeed(seed)), 3)

    first = feed(1, 4)
    taken(first, 1)
    state = through_a_checkpoint(first.state())
    resumed = feed(2, 7)
    resumed.load_state(state)
    assert [len(batch) for batch in taken(resumed, 2)] == [7, 7]
    (found,) = resumed.findings
    assert "sampler.seed" in found.words
    assert found.bearing is Bearing.NOTED


def test_a_generator_that_the_script_does_not_seed_is_restored():
    """Two starts make it with different states."""

    class Unseeded(OfNumpy):
        def __init__(self):
            self.rng = np.random.default_rng()

    first = LoaderFeed(DataLoader(Plain(), 4, sampler=Unseeded()), 3)
    state = through_a_checkpoint(first.state())
    whole = taken(first, 1)
    resumed = LoaderFeed(DataLoader(Plain(), 4, sampler=Unseeded()), 3)
    resumed.load_state(state)
    assert taken(resumed, 1) == whole


def test_an_epoch_that_begins_again_in_one_process_is_the_same():
    """As a rollback to its begin asks for it."""
    loader = DataLoader(Plain(), 4, shuffle=True, generator=seeded())
    feed = LoaderFeed(loader, 3)
    first, second = taken(feed, 1), taken(feed, 2)
    assert first != second
    assert (taken(feed, 1), taken(feed, 2)) == (first, second)


def test_a_rollback_in_one_process_brings_attributes_back_that_were_made_since():
    """The sampler had no such attribute when the state was taken."""
    feed = feed_over(SAMPLERS["MadeLater"])[1]
    state = through_a_checkpoint(feed.state())
    whole = [taken(feed, epoch) for epoch in (1, 2)]
    feed.load_state(state)
    assert [taken(feed, epoch) for epoch in (1, 2)] == whole


def test_a_validation_is_the_same_each_time_and_moves_no_generator():
    """Its sampler shares the generator with training."""
    shared = seeded()
    training = LoaderFeed(DataLoader(Plain(), 4, shuffle=True, generator=shared), 3)
    plain = [taken(training, epoch) for epoch in (1, 2)]
    shared.manual_seed(5)
    training = LoaderFeed(DataLoader(Plain(), 4, shuffle=True, generator=shared), 3)
    validation = LoaderFeed(DataLoader(Plain(), 4, shuffle=True, generator=shared), 9)
    first = taken(training, 1)
    validated = []
    for _ in range(2):
        with validation.untouched():
            validated.append(taken(validation, 0))
    assert [first, taken(training, 2)] == plain
    assert validated[0] == validated[1]


@pytest.mark.parametrize(
    "values",
    [
        [[1, 2], [3]],
        [[2**40, -1]],
        [[2**70]],
        [["a", ("b", 1)]],
        [(1, 2)],
        [[]],
        [],
        [[True, 1]],
    ],
    ids=str,
)
def test_batches_that_were_drawn_ahead_keep_their_values_and_types(values):
    """Whole numbers are stored as arrays; anything else as it is."""
    batches = [(number, 5 * number, value) for number, value in enumerate(values, 3)]
    if batches and all(type(one) is int for value in values for one in value):
        firsts = [3]
        for value in values[:-1]:
            firsts.append(firsts[-1] + len(value))
        batches = [(number, first, value) for (number, _, value), first in zip(batches, firsts, strict=True)]
    found = unpacked(through_a_checkpoint(packed(batches)))
    assert found == batches
    assert [list(map(type, value)) for _, _, value in found] == [list(map(type, value)) for value in values]


def test_batches_of_any_kind_of_index_are_drawn_once_each():
    """Tuples, texts, arrays, tensors and iterators as batches; with and without workers."""

    class ByName(Plain):
        def __getitem__(self, key):
            return torch.tensor([float(sum(map(ord, repr(key)))), random.random()])

    odd = [("a", "b"), np.array([1, 2]), torch.tensor([3, 4]), iter([5, 6]), [("c", 1), ("d", 2)], range(2)]

    class Odd(BatchSampler):
        def __init__(self):
            pass

        def __len__(self):
            return len(odd)

        def __iter__(self):
            return iter([list(one) if one is odd[3] else one for one in odd] if spent else odd)

    spent = False
    found = [taken(LoaderFeed(DataLoader(ByName(), batch_sampler=Odd()), 3), 1)]
    odd[3], spent = [5, 6], True
    found.append(taken(LoaderFeed(DataLoader(ByName(), batch_sampler=Odd(), num_workers=1), 3), 1))
    assert len(found[0]) == len(odd)
    assert found[0] == found[1]


def test_batches_that_grow_with_the_epochs_are_counted_anew():
    """The length of an epoch is read at its begin."""
    data = Plain(8)
    feed = LoaderFeed(DataLoader(data, 4, shuffle=True), 3)
    assert feed.batches == 2
    taken(feed, 1)
    data.length, data.hard = 14, [1.0] * 14
    assert len(taken(feed, 2)) == feed.batches == 4
    sizes = LoaderFeed(DataLoader(Plain(), batch_sampler=OwnBatches(OfNumpy())), 3)
    assert [[len(batch) for batch in taken(sizes, epoch)] for epoch in (1, 2)] == [[5, 5, 4], [4, 4, 4, 2]]
