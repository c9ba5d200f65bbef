"""What an item draws is a function of (seed, epoch, position), with any workers and any generator of its own."""

from __future__ import annotations

import argparse
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, default_collate, get_worker_info, random_split

from tests.trainer.data.kinds import Holding, MadeAtFirstRead, OnlyItems, Sendable, Told, Transformed, mixing
from tests.trainer.data.samplers import N, Plain, seeded
from tests.trainer.data.stops import differing_stops, feed_over, taken
from tolariad.trainer.data import sources
from tolariad.trainer.data.held import shared_with
from tolariad.trainer.data.loaders import LoaderFeed, feed_of
from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.torch_private import choice


def _over(kind, **more):
    return lambda **options: DataLoader(kind(), 4, shuffle=True, **more, **options)


def _whole(**options):
    return DataLoader(Subset(Transformed(), range(2, N)), 4, shuffle=True, **options)


DATA = {
    **{kind.__name__: _over(kind) for kind in (Holding, OnlyItems, MadeAtFirstRead, Transformed, Told)},
    "a collate function": _over(Plain, collate_fn=mixing),
    "a subset": _whole,
    "several": _over(lambda: ConcatDataset([Transformed(), Transformed()])),
    "a split": _over(lambda: random_split(Transformed(), [10, 4], generator=seeded())[0]),
    "a list": _over(lambda: [np.arange(3.0) + number for number in range(N)]),
}


@pytest.mark.parametrize("kind", DATA)
def test_a_resume_gives_the_same_items(kind):
    """At each batch of two epochs, in a new process."""
    differing, found, whole = differing_stops(DATA[kind], None, checked=True)
    assert differing == []
    assert not found
    assert whole[1] != whole[2]


@pytest.mark.sample(5)
@pytest.mark.parametrize("kind", ["Holding", "OnlyItems", "MadeAtFirstRead", "a collate function", "Told"])
@pytest.mark.parametrize("persistent", [False, True], ids=["", "persistent"])
def test_workers_give_the_items_that_a_loader_without_them_gives(kind, persistent):
    """Also those that live on, and after a resume."""
    whole = differing_stops(DATA[kind], [], checked=True)[2]
    more = {"num_workers": 2, "persistent_workers": persistent}
    differing, found, in_workers = differing_stops(DATA[kind], [(2, 1)], checked=True, **more)
    assert in_workers == whole
    assert differing == []
    assert not found


def test_one_index_three_times_in_an_epoch_is_augmented_three_times():
    """Oversampling and repeated augmentation: items are seeded by position, as torch draws anew for each."""
    loader = DataLoader(Plain(2), 6, sampler=[0, 0, 0, 1, 1, 1])
    (batch,) = taken(LoaderFeed(loader, 3), 1)
    assert [item[0] for item in batch] == [0, 0, 0, 1, 1, 1]
    assert len({item[1] for item in batch}) == 6


def test_the_worker_is_the_users():
    """What worker_init_fn sets reaches items and collate function, by get_worker_info().dataset."""

    class Shifted(Dataset):
        shift = 0.0

        def __len__(self):
            return 4

        def __getitem__(self, index):
            assert get_worker_info().dataset is self
            return torch.tensor([index + self.shift])

        def own_method(self):
            self.shift = 7.0

    def init(_):
        get_worker_info().dataset.own_method()

    def collate(items):
        return torch.stack(items) + get_worker_info().dataset.shift

    loader = DataLoader(Shifted(), 2, num_workers=1, worker_init_fn=init, collate_fn=collate)
    feed = feed_of(loader, batch_size=2, workers=0, rng_seed=3, shuffle=True)
    assert taken(feed, 1) == [[[14.0], [15.0]], [[16.0], [17.0]]]
    assert feed.fingerprint().items, "worker_init_fn is called there too, and sees the data set"


def test_a_batch_for_getitems_and_an_index_without_batching_reach_it_as_they_are():
    """A plain list, a plain int: with workers too."""

    class Strict(Plain):
        def __getitem__(self, index):
            assert type(index) is int
            return super().__getitem__(index)

    class StrictBatches(Plain):
        def __getitems__(self, indices):
            assert type(indices) is list
            assert {type(index) for index in indices} == {int}
            return [super(StrictBatches, self).__getitem__(index) for index in indices]

    for options in ({}, {"num_workers": 1}):
        alone = taken(LoaderFeed(DataLoader(Strict(), None, shuffle=True, **options), 3), 1)
        batched = taken(LoaderFeed(DataLoader(StrictBatches(), 4, shuffle=True, **options), 3), 1)
        assert (len(alone), len(batched)) == (N, 4)
        assert len({item[1] for item in alone}) == N
        assert len({item[1] for batch in batched for item in batch}) == N


def test_data_that_are_read_in_batches_only_are_data():
    """Without `__getitem__`, and without the base class of torch."""

    class Batches:
        def __len__(self):
            return 4

        def __getitems__(self, indices):
            return [torch.tensor([float(index)]) for index in indices]

    feed = feed_of(Batches(), batch_size=2, workers=0, rng_seed=1, shuffle=False)
    assert taken(feed, 1) == [[[0.0], [1.0]], [[2.0], [3.0]]]
    assert len(feed.fingerprint().items) == 4


def test_a_generator_that_the_training_holds_too_is_left_alone():
    """Its stream is the plain loop's, and a checkpoint has its state. Workers seed their copies."""

    def make(**options):
        rng = np.random.default_rng(3)
        model = nn.Linear(1, 1)
        model.augment = Transformed()
        model.augment.transforms = [rng]

        class Noisy(Plain):
            def __getitem__(self, index):
                return torch.tensor([index, self.rng.random()])

        data = Noisy()
        data.rng = rng
        make.model = model
        return DataLoader(data, 4, **options)

    _, feed = feed_over(make)
    feed.share([make.model])
    plain = np.random.default_rng(3)
    assert taken(feed, 1)[0] == [[index, pytest.approx(plain.random())] for index in range(4)]
    running = feed.epoch(2, 0)
    next(running)
    state = feed.state()
    rest = [batch.tolist() for batch in running]
    _, resumed = feed_over(make)
    resumed.share([make.model])
    resumed.load_state(state)
    assert taken(resumed, 2, 1) == rest


def test_a_task_that_holds_its_data_does_not_share_their_generators():
    """Only what it holds beside them is a part of the training."""

    class Task:
        pass

    task, data = Task(), Transformed()
    task.data, task.transforms = data, data.transforms
    assert shared_with([task], [data]) == set()
    task.rng = data.transforms[0].rng
    assert shared_with([task], [data]) == {id(task.rng)}


def test_set_epoch_is_called_wherever_it_is():
    """Of the data set, of a sampler below a wrapper, of a collate function's object; also one that is an attribute."""
    told = []

    class Knows:
        def __init__(self, name):
            self.name = name

        def set_epoch(self, epoch):
            told.append((self.name, epoch))

    class Collate(Knows):
        def __call__(self, items):
            return default_collate(items)

    class Wrapping(Knows):
        def __init__(self, inner):
            super().__init__("sampler")
            self.inner = inner

        def __iter__(self):
            return iter(range(4))

        def __len__(self):
            return 4

    data, none, given = Told(), Knows("none"), argparse.Namespace()
    none.set_epoch = None
    given.set_epoch = lambda epoch: told.append(("given", epoch))
    data.inner = [Knows("inner"), none, given]
    loader = DataLoader(data, 2, sampler=Wrapping(Knows("wrapped")), collate_fn=Collate("collate"))
    taken(LoaderFeed(loader, 3), 5)
    assert sorted(told) == [("collate", 5), ("given", 5), ("inner", 5), ("sampler", 5), ("wrapped", 5)]
    assert data.epoch == 5


def test_items_leave_the_process_wide_generators_alone():
    """And so do the order, a resume and the check at the first start."""

    def state():
        return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()

    feed = LoaderFeed(DataLoader(Holding(), 4, shuffle=True), 3)
    before = state()
    feed.check(())
    running = feed.epoch(1, 0)
    next(running)
    saved = feed.state()
    list(running)
    feed.load_state(saved)
    list(feed.epoch(1, 1))
    assert state() == before


def test_a_generator_of_torch_cannot_be_sent_to_workers_that_are_spawned():
    """It is refused by name: torch itself fails with a sentence about shared memory."""
    loader = DataLoader(Holding(), 4, num_workers=1, multiprocessing_context="spawn")
    with pytest.raises(SetupRefused, match=r"dataset\.torch.*spawn"):
        feed_of(loader, batch_size=4, workers=0, rng_seed=3, shuffle=True)


@pytest.mark.torture
@pytest.mark.parametrize("how", ["spawn", "forkserver"])
def test_workers_that_are_spawned_give_the_same_items(how):
    """They get no memory of this process, only what is pickled."""
    make = _over(Sendable)
    whole = differing_stops(make, [])[2]
    options = {"num_workers": 1, "multiprocessing_context": how}
    differing, _, spawned = differing_stops(make, [(2, 1)], **options)
    assert spawned == whole
    assert differing == []


class OfItsWorker(Plain):
    """An item says who reads it, as shards and logs of workers do. So does the worker's function."""

    def __init__(self):
        super().__init__()
        self.told = -1.0

    def __getitem__(self, index):
        info = get_worker_info()
        return torch.tensor([index, info.id, info.seed, self.told, torch.initial_seed()], dtype=torch.float64)


def _tell(worker):
    get_worker_info().dataset.told = worker + random.random() + np.random.rand() + torch.rand(()).item()


@pytest.mark.sample(2)
@pytest.mark.parametrize("persistent", [False, True], ids=["", "persistent"])
@pytest.mark.parametrize("public", [False, True], ids=["", "public"])
def test_a_resume_gives_each_batch_to_the_worker_that_had_it(persistent, public, monkeypatch):
    """Its number and its seed are those of the run without the interruption, at each batch and in the epoch after."""
    for module in (sources, choice):
        monkeypatch.setattr(module, "ONLY_PUBLIC", public)
    over = _over(OfItsWorker, worker_init_fn=_tell, num_workers=3, persistent_workers=persistent)
    differing, found, whole = differing_stops(over, [(1, 1), (1, 2), (2, 3)])
    assert differing == []
    assert not found
    assert [batch[0][1] for batch in whole[2]] == [0, 1, 2, 0]
