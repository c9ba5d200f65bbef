"""Streams, loaders with ways of their own and objects around loaders: the user's batches, and an exact resume."""

from __future__ import annotations

import itertools
import queue
import threading

import pytest
import torch
from torch.utils.data import DataLoader, get_worker_info
from torch.utils.data.datapipes.iter import IterableWrapper

from tests.trainer.data.kinds import (
    Around,
    Both,
    ByHand,
    CountingStream,
    Filtering,
    FirstTwo,
    Getter,
    HalfLabelled,
    Holding,
    ItsOwnIterator,
    KeptStream,
    LookingAhead,
    OneAfterTheOther,
    Scaling,
    Shuffled,
    ToldStream,
    WithAttribute,
    mixing,
)
from tests.trainer.data.samplers import N, seeded
from tests.trainer.data.stops import differing_stops, feed_over, taken
from tolariad.trainer.data import sources
from tolariad.trainer.data.feed import Bearing
from tolariad.trainer.data.loaders import IterableFeed, LoaderFeed, feed_of
from tolariad.trainer.torch_private.loaders import shut_down


def _stream(kind, size=4, **more):
    return lambda **options: DataLoader(kind(), size, **more, **options)


def _own(kind):
    return lambda **options: kind(Holding(), 4, shuffle=True, generator=seeded(), **options)


def _inner(**options):
    return DataLoader(Holding(), 4, shuffle=True, generator=seeded(), **options)


KINDS = {
    **{kind.__name__: _stream(kind) for kind in (Shuffled, ToldStream, CountingStream, KeptStream)},
    "drop_last": _stream(Shuffled, drop_last=True),
    "no batches": _stream(Shuffled, None),
    "a collate function": _stream(Shuffled, collate_fn=mixing),
    **{
        kind.__name__: _own(kind)
        for kind in (Scaling, FirstTwo, Getter, Filtering, LookingAhead, ByHand, WithAttribute)
    },
    "scaling a stream": lambda **options: Scaling(Shuffled(), 4, **options),
    "around a loader": lambda **options: Around(_inner(**options)),
    "its own iterator": lambda **options: ItsOwnIterator(_inner(**options)),
    "around a stream": lambda **options: Around(DataLoader(Shuffled(), 4, **options)),
    "both at once": lambda **options: Both(_inner(**options), DataLoader(Holding(), 3, shuffle=True, **options)),
    "one after the other": lambda **options: OneAfterTheOther(
        _inner(**options), DataLoader(Holding(), 3, shuffle=True, **options)
    ),
    "half labelled": lambda **options: HalfLabelled(
        _inner(**options), DataLoader(Holding(), 9, shuffle=True, drop_last=True, **options)
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_resume_at_any_batch_gives_the_same_batches(kind):
    """Whatever the loader does with them: it may scale, filter, look ahead, or take another one again."""
    differing, found, whole = differing_stops(KINDS[kind], None)
    assert differing == []
    assert not found
    assert whole[1] != whole[2]


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("kind", "persistent"),
    [
        ("Shuffled", False),
        *((kind, True) for kind in ("Shuffled", "ToldStream", "no batches", "both at once", "its own iterator")),
        ("a collate function", True),
    ],
)
def test_workers_resume_too(kind, persistent):
    """A stream that is shuffled in a worker that lives on begins each epoch as in a new worker."""
    stops = [(2, 0), (2, 1)]
    differing, found, whole = differing_stops(KINDS[kind], stops, num_workers=2, persistent_workers=persistent)
    assert differing == []
    assert not found
    assert whole[1] != whole[2]


@pytest.mark.parametrize("kind", ["Scaling", "FirstTwo", "Filtering", "Getter", "ByHand", "WithAttribute"])
def test_the_batches_are_those_of_the_users_class(kind):
    """Indices and lengths are those of the plain loop over the same loader."""
    plain, _ = feed_over(KINDS[kind])
    expected = [[row[0] for row in batch.tolist()] for _ in range(2) for batch in plain]
    _, feed = feed_over(KINDS[kind])
    assert [[row[0] for row in batch] for epoch in (1, 2) for batch in taken(feed, epoch)] == expected
    assert feed.batches == len(plain)


def test_an_object_that_is_its_own_iterator_holds_none():
    """What it has read so far lies in its attributes."""
    _, feed = feed_over(KINDS["its own iterator"], checked=True)
    assert not feed.findings


def test_a_class_that_overrides_nothing_of_the_iteration_skips_by_index():
    """A resume loads no item of the batches before."""
    _, feed = feed_over(KINDS["WithAttribute"])
    assert isinstance(feed, LoaderFeed)
    data, feed = feed_over(KINDS["Scaling"])
    assert isinstance(feed, IterableFeed)
    assert "loads the batches before it again" in feed.note
    list(feed.epoch(1, 2))
    assert data.dataset.read == N


def test_the_loader_is_as_before_when_it_was_iterated():
    """Its sampler, its worker function and its attributes are the user's, also while it is iterated."""
    data, feed = feed_over(KINDS["Scaling"])
    before = {name: id(value) for name, value in vars(data).items()}
    running = feed.epoch(1, 0)
    next(running)
    assert {name: id(value) for name, value in vars(data).items()} == before
    list(running)
    assert {name: id(value) for name, value in vars(data).items()} == before


def test_what_stands_in_for_a_sampler_is_one_of_its_class():
    """A loader that looks at its sampler finds the class and the attributes that it knows."""
    seen = []

    class Looking(DataLoader):
        def __iter__(self):
            seen.append((isinstance(self.batch_sampler, self.kind), self.batch_sampler.batch_size, len(self)))
            return super().__iter__()

    loader = Looking(Holding(), 4, shuffle=True)
    loader.kind = type(loader.batch_sampler)
    taken(IterableFeed(loader, 3), 1)
    assert seen == [(True, 4, 4)]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_that_made_its_iterator_before_is_named(workers):
    """It does not draw from its sampler any more: at the first start by what it holds, and at the first batch."""

    class Early(DataLoader):
        def __init__(self, *given, **more):
            super().__init__(*given, **more)
            self.made = super().__iter__()

        def __iter__(self):
            return itertools.islice(self.made, 2)

    loader = Early(Holding(), 4, shuffle=True, num_workers=workers)
    feed = IterableFeed(loader, 3)
    feed.check(())
    assert len(taken(feed, 1)) == 2
    feed.load_state(feed.state())
    assert len(taken(feed, 2)) == 2, "nothing was put back into the iterator that is running"
    assert {finding.bearing for finding in feed.findings} == {Bearing.INEXACT}
    words = [finding.words for finding in feed.findings]
    assert any("holds an iterator" in one or "hold an iterator" in one for one in words)
    assert any("does not draw from its sampler" in one for one in words)
    shut_down(loader.made)


class ReadAhead:
    """What is iterated is read by a thread, as background generators do."""

    def __init__(self, read):
        self.queue = queue.Queue(2)
        threading.Thread(target=self._fill, args=(read,), daemon=True).start()

    def _fill(self, read):
        for batch in read:
            self.queue.put(batch)
        self.queue.put(None)

    def __iter__(self):
        return iter(self.queue.get, None)


class Background(DataLoader):
    def __iter__(self):
        return iter(ReadAhead(super().__iter__()))


class ReadFromTheBegin:
    """The loader is read before anybody asks for a batch."""

    def __init__(self, loader):
        self.loader, self.ahead = loader, ReadAhead(itertools.chain.from_iterable(itertools.repeat(loader)))

    def __iter__(self):
        return itertools.islice(self.ahead, 4)


@pytest.mark.parametrize(
    "data",
    [
        lambda: Background(Holding(), 4, shuffle=True),
        lambda: ReadFromTheBegin(DataLoader(Holding(), 4, shuffle=True)),
    ],
    ids=["background", "from the begin"],
)
def test_a_thread_that_draws_the_data_is_named(data):
    """It draws from the generators that the training draws from, at any time."""
    feed = feed_of(data(), batch_size=4, workers=0, rng_seed=3, shuffle=True)
    assert len(taken(feed, 1)) == 4
    assert [finding.bearing for finding in feed.findings] == [Bearing.INEXACT]
    assert "a thread beside the training" in feed.findings[0].words


def test_a_stream_that_keeps_a_state_in_workers_that_live_on_is_named():
    """At the first start, and if it comes to a resume that cannot be exact."""
    options = {"num_workers": 1, "persistent_workers": True}
    differing, found, _ = differing_stops(KINDS["CountingStream"], [(2, 1)], checked=True, **options)
    assert differing
    words = [finding.words for finding in found]
    assert any("dataset.at" in one for one in words)
    assert any("others when they are loaded again" in one for one in words)
    _, feed = feed_over(KINDS["Shuffled"], checked=True, **options)
    assert not feed.findings, "one that only holds a generator is exact"


def test_a_stream_that_does_not_repeat_itself_is_named_at_the_resume():
    """Its first batches are loaded again, and compared."""

    class Anew(Shuffled):
        def __iter__(self):
            return iter([torch.rand(1, generator=torch.Generator().manual_seed(next(self.numbers)))] * N)

    Anew.numbers = itertools.count()

    def feed():
        return IterableFeed(DataLoader(Anew(), 4), 3)

    first = feed()
    next(first.epoch(1, 0))
    resumed = feed()
    resumed.load_state(first.state())
    assert len(taken(resumed, 1, 1)) == 3
    (found,) = resumed.findings
    assert found.bearing is Bearing.INEXACT


def test_workers_that_come_in_no_order_are_named():
    """in_order=False: nobody can know which batch comes next."""
    _, feed = feed_over(_inner, checked=True, num_workers=2, in_order=False)
    (found,) = feed.findings
    assert "in_order is False" in found.words


class LaterKnown(Both):
    """As Lightning's CombinedLoader: before its first iterator `len` raises RuntimeError."""

    iterator = None

    def __iter__(self):
        self.iterator = super().__iter__()
        return self.iterator

    def __len__(self):
        if self.iterator is None:
            raise RuntimeError("Please call iter first")
        return min(map(len, self.loaders.values()))


def test_data_whose_length_is_not_known_before_they_are_iterated_over_are_data():
    """The length is unknown in later epochs too: a resumed process would not know it."""

    def make():
        return LaterKnown(_inner(), _inner())

    differing, found, whole = differing_stops(make, [(1, 2), (1, 4), (2, 1)], checked=True)
    assert (differing, found) == ([], set())
    assert whole[1] != whole[2]
    _, feed = feed_over(make)
    taken(feed, 1), taken(feed, 2)
    assert feed.batches is None


def test_a_data_pipe_is_shuffled_anew_in_workers_that_live_on():
    """torch draws its order beside the workers' seed. What a pipe notes itself is no state that must be named."""

    def make(**options):
        pipe = IterableWrapper(range(N)).shuffle().sharding_filter()
        return DataLoader(pipe, 4, num_workers=1, persistent_workers=True, **options)

    differing, found, whole = differing_stops(make, [(1, 2), (2, 1)], checked=True)
    assert (differing, found) == ([], set())
    assert whole[1] != whole[2]


def _with_seed_of_worker(item):
    return torch.tensor([item, get_worker_info().seed], dtype=torch.float64)


@pytest.mark.parametrize("kind", ["the loader", "a subclass"])
def test_a_data_pipe_in_workers_that_live_on_has_the_workers_seed_again_after_a_resume(kind):
    """That of the workers' start, as in torch, and not one of the epoch in which new workers begin."""

    def make(**options):
        pipe = IterableWrapper(range(N)).shuffle().sharding_filter().map(_with_seed_of_worker)
        loader = DataLoader if kind == "the loader" else Scaling
        return loader(pipe, 4, num_workers=2, persistent_workers=True, **options)

    differing, found, whole = differing_stops(make, [(1, 2), (2, 1)])
    assert (differing, found) == ([], set())
    assert whole[1] != whole[2]


@pytest.mark.parametrize(("public", "persistent", "named"), [(True, True, 1), (True, False, 0), (False, True, 0)])
def test_workers_that_torch_has_no_public_way_to_end_are_named(monkeypatch, public, persistent, named):
    """Those of a class of the user's own; a loader of torch's own is made anew, and its workers end with it."""
    monkeypatch.setattr(sources, "ONLY_PUBLIC", public)
    for make, count in ((_own(Scaling), named), (_inner, 0)):
        _, feed = feed_over(make, checked=True, num_workers=1, persistent_workers=persistent)
        assert ["cannot be ended" in found.words for found in feed.findings] == [True] * count


class Cycling(Both):
    """The second loader is shorter, and goes on from epoch to epoch by an iterator that is held."""

    going = None

    def __iter__(self):
        first, second = self.loaders.values()
        for batch in first:
            self.going = self.going or iter(second)
            beside = next(self.going, None)
            if beside is None:
                self.going = iter(second)
                beside = next(self.going)
            yield batch + beside.sum()


def test_an_iterator_that_goes_on_in_the_next_epoch_is_named_when_that_begins():
    """In a new process it is at its beginning. One that each epoch makes anew is not named."""
    for make, named in (
        (lambda: Cycling(_inner(), _inner(drop_last=True)), True),
        (lambda: Both(_inner(), _inner()), False),
    ):
        _, feed = feed_over(make, checked=True)
        taken(feed, 1)
        assert not feed.take_findings()
        taken(feed, 2)
        assert ["hold an iterator (data.going)" in found.words for found in feed.findings] == [True] * named


class Fresh:
    """A loader with workers that is made anew in each epoch."""

    def __len__(self):
        return 4

    def __iter__(self):
        return iter(DataLoader(Holding(), 4, shuffle=True, num_workers=1))


def test_the_threads_that_feed_workers_are_no_threads_that_draw():
    """Of a loader that the data make themselves, too."""
    _, feed = feed_over(Fresh, checked=True)
    assert not feed.findings
