"""Any data become a feed whose batches depend on seed, epoch and position alone."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from tests.waiting import within
from tolariad.trainer.data.feed import TensorFeed
from tolariad.trainer.data.loaders import IterableFeed, LoaderFeed, feed_of
from tolariad.trainer.errors import SetupRefused


class Drawing(Dataset):
    """Each item is its index and a draw from all three process-wide generators."""

    def __len__(self):
        return 11

    def __getitem__(self, index):
        return index, random.random() + np.random.rand() + torch.rand(()).item()


class Counted(Drawing):
    """Counts the items that were loaded, in any process."""

    def __init__(self):
        self.items = torch.zeros((), dtype=torch.int64).share_memory_()

    def __getitem__(self, index):
        self.items += 1
        return super().__getitem__(index)


def batches(feed, epoch=1, start=0):
    return [torch.stack([part.double() for part in batch]).tolist() for batch in feed.epoch(epoch, start)]


def loader_feed(rng_seed=3, **options):
    return LoaderFeed(DataLoader(Drawing(), **{"batch_size": 4, "shuffle": True, **options}), rng_seed)


@pytest.mark.parametrize("options", [{}, {"num_workers": 1}, {"num_workers": 2, "persistent_workers": True}], ids=str)
def test_workers_do_not_change_a_batch_and_neither_does_the_position(options):
    """Order and random draws are those of a loader without workers, from any position, in any epoch."""
    plain = loader_feed()
    feed = loader_feed(**options)
    for epoch in (1, 2):
        whole = batches(plain, epoch)
        assert batches(feed, epoch) == whole
        assert batches(feed, epoch, start=2) == whole[2:]
    assert batches(plain, 1) != batches(plain, 2)
    feed.end_workers()


@pytest.mark.parametrize("options", [{}, {"persistent_workers": True}], ids=str)
def test_how_far_workers_load_ahead_changes_no_batch(options):
    """From the next epoch on, whenever it is said; the workers then hold fewer batches."""
    plain, counted = loader_feed(batch_size=1), Counted()
    loader = DataLoader(counted, batch_size=1, shuffle=True, num_workers=1, prefetch_factor=4, **options)
    feed = LoaderFeed(loader, 3)
    for epoch, ahead, loaded in ((1, None, 5), (2, 1, 2), (3, 1, 2), (4, None, 5)):
        feed.load_ahead(ahead)
        counted.items.zero_()
        running = feed.epoch(epoch, 0)
        first = next(running)
        assert within(10.0, lambda loaded=loaded: int(counted.items) >= loaded)
        time.sleep(0.05)
        assert int(counted.items) == loaded
        feed.load_ahead(1 if ahead is None else None)
        found = [torch.stack([part.double() for part in batch]).tolist() for batch in (first, *running)]
        assert found == batches(plain, epoch)
    feed.end_workers()


def test_the_process_wide_generators_are_left_alone():
    """Items loaded in this process do not change the generators."""
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    wanted = (random.random(), np.random.rand(), torch.rand(()).item())
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    for _ in loader_feed().epoch(1, 0):
        pass
    assert (random.random(), np.random.rand(), torch.rand(()).item()) == wanted


def test_skipped_batches_are_not_loaded():
    """A resumed epoch skips indices without loading items."""
    loaded = []

    class Counting(Drawing):
        def __getitem__(self, index):
            loaded.append(index)
            return super().__getitem__(index)

    feed = LoaderFeed(DataLoader(Counting(), batch_size=2), 1)
    for _ in feed.epoch(1, 4):
        pass
    assert loaded == [8, 9, 10]


def test_a_samplers_epoch_is_set():
    """The order of torch's sampler for several processes depends on it."""
    loader = DataLoader(Drawing(), 4, sampler=DistributedSampler(Drawing(), 2, 1, seed=5))
    feed = LoaderFeed(loader, 3)
    first = batches(feed, 1)
    assert batches(feed, 2) != first
    assert loader.sampler.epoch == 2
    assert batches(feed, 1) == first


def test_a_loader_keeps_its_ways():
    """drop_last, collate_fn and unbatched loading of the given loader are kept."""
    assert [len(batch[0]) for batch in batches(loader_feed(drop_last=True))] == [4, 4]
    assert loader_feed(drop_last=True).batches == 2
    collated = LoaderFeed(DataLoader(Drawing(), 4, collate_fn=len), 1)
    assert list(collated.epoch(1, 0)) == [4, 4, 3]
    single = LoaderFeed(DataLoader(Drawing(), batch_size=None), 1)
    assert [item[0] for item in single.epoch(1, 9)] == [9, 10]


def test_each_kind_of_data_becomes_the_feed_for_it():
    """Tensors are indexed, datasets get a loader, loaders are rebuilt."""

    def made(data):
        return feed_of(data, batch_size=2, workers=0, rng_seed=1, shuffle=True)

    tensors = (torch.ones(3), torch.ones(3))
    assert isinstance(made(tensors), TensorFeed)
    assert isinstance(made(TensorDataset(*tensors)), TensorFeed)
    assert isinstance(made(Drawing()), LoaderFeed)
    assert isinstance(made(DataLoader(Drawing())), LoaderFeed)
    assert isinstance(made([[1], [2]]), LoaderFeed)
    in_order = feed_of(Drawing(), batch_size=11, workers=0, rng_seed=1, shuffle=False)
    assert batches(in_order)[0][0] == list(range(11))


class Stream(IterableDataset):
    def __iter__(self):
        return iter([random.random() for _ in range(4)])


def test_an_iterable_repeats_itself_from_any_batch():
    """Its draws are seeded by epoch and batch; the batches before are loaded again and dropped."""
    feed = feed_of(Stream(), batch_size=2, workers=0, rng_seed=1, shuffle=True)
    assert isinstance(feed, IterableFeed)
    first = list(feed.epoch(1, 0))
    assert list(feed.epoch(1, 0)) == first
    assert list(feed.epoch(2, 0)) != first
    assert list(feed.epoch(1, 2)) == first[2:]
    assert feed.can_stop_at(2)
    assert "loads the batches before it again" in feed.note


class Stateful:
    """Counts its position, as a stateful loader does."""

    def __init__(self):
        self.at = 0

    def __len__(self):
        return 5

    def __iter__(self):
        while self.at < 5:
            self.at += 1
            yield self.at + random.random()
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


def test_data_with_a_state_goes_on_where_it_was():
    """Its own state is captured, and its draws depend on the position only."""
    whole = list(IterableFeed(Stateful(), 1).epoch(1, 0))
    one = IterableFeed(Stateful(), 1)
    iterator = one.epoch(1, 0)
    begun = [next(iterator), next(iterator)]
    other = IterableFeed(Stateful(), 1)
    other.load_state(one.state())
    assert begun + list(other.epoch(1, 2)) == whole
    assert one.note == ""


class OnlyOnce(Iterator):
    """An iterator that begins nothing in `__iter__`."""

    def __next__(self):
        raise StopIteration


ONLY_ONCE = {"iterator": iter([1]), "generator": (n for n in ()), "cycle": itertools.cycle([1]), "a class": OnlyOnce()}


@pytest.mark.parametrize(
    ("data", "why"),
    [*((one, "only once") for one in ONLY_ONCE.values()), (5, "give a Dataset")],
    ids=[*ONLY_ONCE, "number"],
)
def test_data_that_cannot_be_used_is_refused(data, why):
    """A generator would be empty in the second epoch; anything that is not data is refused by name."""
    with pytest.raises(SetupRefused, match=why):
        feed_of(data, batch_size=2, workers=0, rng_seed=1, shuffle=True)


def test_what_the_user_changes_of_a_loader_between_epochs_is_used():
    """Its data set, its collate function, its number of workers: as torch would use them."""
    loader = DataLoader(Drawing(), 4, collate_fn=len)
    feed = LoaderFeed(loader, 1)
    assert list(feed.epoch(1, 0)) == [4, 4, 3]
    loader.collate_fn = max
    vars(loader)["dataset"] = [[number] for number in range(11)]
    assert list(feed.epoch(2, 0)) == [[3], [7], [10]]
    loader.num_workers, loader.prefetch_factor = 1, 2
    assert list(feed.epoch(3, 0)) == [[3], [7], [10]]


def test_workers_end_with_their_epoch_unless_the_user_wants_them_to_live_on():
    """`workers: N` makes none that outlive an epoch, so a hook that changes the data set is seen."""

    class Scaled(Drawing):
        scale = 1

        def __getitem__(self, index):
            return torch.tensor(index * self.scale)

    data = Scaled()
    feed = feed_of(data, batch_size=11, workers=1, rng_seed=1, shuffle=False)
    assert next(iter(feed.epoch(1, 0)))[1] == 1
    data.scale = 3
    assert next(iter(feed.epoch(2, 0)))[1] == 3
    assert not feed.findings


def test_a_change_that_workers_who_live_on_do_not_see_is_said():
    """As torch does it: but a resume would start new workers, which do see it."""
    loader = DataLoader(Counted(), 4, num_workers=1, persistent_workers=True)
    feed = LoaderFeed(loader, 1)
    list(feed.epoch(1, 0))
    list(feed.epoch(2, 0))
    assert not feed.findings, "what lies in shared memory is seen"
    loader.dataset.scale = 2
    list(feed.epoch(3, 0))
    feed.end_workers()
    (found,) = feed.findings
    assert "dataset.scale has changed" in found.words
    assert "persistent_workers=False" in found.words
