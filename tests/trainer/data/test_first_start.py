"""What a resume would have to draw again is drawn twice at the first start, and named if it differs."""

from __future__ import annotations

import functools
import itertools
import os
import random
import socket
import time
import types
import uuid
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from tests.trainer.data.samplers import N, OfTheClock, Plain, closure
from tolariad.trainer.data import first_start
from tolariad.trainer.data.feed import Bearing
from tolariad.trainer.data.loaders import LoaderFeed, feed_of

ROWS = torch.arange(32.0).reshape(8, 4)
OWN = np.random.default_rng(1)
HIDDEN = types.ModuleType("hidden")
HIDDEN.rng = np.random.default_rng(2)


def data(item, length=8, **held):
    """A data set whose items are those of a function of it and the index."""

    class Made(Dataset):
        def __len__(self):
            return length

        def __getitem__(self, index):
            return item(self, index)

    made = Made()
    vars(made).update(held)
    return made


def _cached(self, index):
    if index not in self.cache:
        self.cache[index] = ROWS[index] * 2
    return self.cache[index]


def _counting(self, index):
    self.count += 1
    return ROWS[index]


def _raising(_, index):
    raise ValueError(index)


REPEATING = {
    "rows": lambda: data(lambda _, i: ROWS[i]),
    "process-wide generators": lambda: data(lambda _, i: ROWS[i] + torch.rand(4) + random.random() + np.random.rand()),
    "a generator of its own": lambda: data(lambda self, _: self.rng.normal(), rng=np.random.default_rng(1)),
    "a generator of its module": lambda: data(lambda _, __: OWN.normal()),
    "a generator of another module": lambda: data(lambda _, __: HIDDEN.rng.normal()),
    "a cache": lambda: data(_cached, cache={}),
    "a counter": lambda: data(_counting, count=0),
    "not a number": lambda: data(lambda _, __: torch.full((2,), float("nan"))),
    "an object": lambda: data(lambda _, __: object()),
    "an exception": lambda: data(_raising),
}


def _popping(self, _):
    return ROWS[self.queue.pop()]


def _counted(self, index):
    self.count += 1
    return ROWS[index] * self.count


def _read_on(self, _):
    return np.frombuffer(self.file.read(4), dtype=np.uint8).copy()


DIFFERING = {
    "fresh entropy": (lambda: data(lambda _, __: np.random.default_rng().normal()), "item"),
    "a uuid in a tuple": (lambda: data(lambda _, i: (ROWS[i], str(uuid.uuid4()))), "element 1"),
    "the clock in a field": (lambda: data(lambda _, i: {"x": ROWS[i], "ms": time.perf_counter_ns()}), "field 'ms'"),
    "a file that is read on": (lambda: data(_read_on, file=Path("/dev/urandom").open("rb")), "item"),  # noqa: SIM115
}


OF_ITS_OWN_STATE = {
    "a counter in the value": lambda: data(_counted, count=0),
    "a queue": lambda: data(_popping, queue=list(range(8))),
}


def checked(dataset, ignored=(), **options):
    """Return what is found of a loader over the data."""
    feed = LoaderFeed(DataLoader(dataset, 4, **options), 3)
    feed.check(ignored)
    return feed.findings


@pytest.mark.parametrize("kind", REPEATING)
def test_data_that_repeat_themselves_lead_to_no_word(kind):
    """Draws are seeded, and counters and caches are the user's affair."""
    assert checked(REPEATING[kind]()) == []


@pytest.mark.parametrize("kind", DIFFERING)
def test_data_that_do_not_are_named_with_the_field(kind):
    """And with what to do."""
    make, field = DIFFERING[kind]
    (found,) = checked(make())
    assert found.bearing is Bearing.INEXACT
    assert field in found.words
    assert "Draw from random, numpy.random, torch" in found.words


@pytest.mark.parametrize("kind", OF_ITS_OWN_STATE)
def test_a_state_that_checkpoints_hold_leads_to_no_word_without_workers(kind):
    """A resume puts it back. Copies in workers have theirs, which is in no checkpoint: that is named."""
    make = OF_ITS_OWN_STATE[kind]
    assert checked(make()) == []
    (found,) = checked(make(), num_workers=1)
    assert "item" in found.words


def _keeping(self, index):
    if self.kept[index] is None:
        self.kept[index] = ROWS[index] + torch.rand(4)
    return self.kept[index]


@functools.lru_cache
def _kept_by_python(index):
    return ROWS[index] + torch.rand(4)


@pytest.mark.parametrize(
    "make", [lambda: data(_keeping, length=100, kept=[None] * 100), lambda: data(lambda _, i: _kept_by_python(i))]
)
def test_a_cache_of_augmented_items_is_named(make):
    """A new process draws them anew. Workers that end with their epoch keep nothing, and lead to no word."""
    (found,) = checked(make())
    assert found.bearing is Bearing.INEXACT
    assert "the data keep what they have drawn" in found.words
    assert checked(make(), num_workers=1) == []
    assert len(checked(make(), num_workers=1, persistent_workers=True)) == 1


def test_a_field_that_nobody_trains_on_can_be_ignored():
    """The sentence says how."""
    make, _ = DIFFERING["the clock in a field"]
    (found,) = checked(make())
    assert "data.ignore: [ms]" in found.words
    assert checked(make(), ["ms"]) == []


def test_nothing_of_this_process_is_touched():
    """Queues, counters and files stay where they are, and so do generators."""
    queued, counted = OF_ITS_OWN_STATE["a queue"](), REPEATING["a counter"]()
    own = data(lambda self, _: self.rng.normal(), rng=np.random.default_rng(1))
    state = str(own.rng.bit_generator.state)
    for one in (queued, counted, own):
        checked(one)
    assert (len(queued.queue), counted.count, str(own.rng.bit_generator.state)) == (8, 0, state)


def test_files_and_connections_of_this_process_are_not_read_on(tmp_path):
    """A child shares the positions of open files, and what it takes out of a socket is missing here."""
    path = tmp_path / "lines.txt"
    path.write_text("".join(f"{number}\n" for number in range(10_000)))
    here, there = socket.socketpair()
    here.setblocking(False)
    there.send(b"abcd")

    class Reading(IterableDataset):
        def __init__(self):
            self.file = path.open()

        def __iter__(self):
            return (int(self.file.readline()) for _ in range(8))

    with here, there:
        streamed = feed_of(Reading(), batch_size=4, workers=0, rng_seed=3, shuffle=True)
        for feed in (streamed, LoaderFeed(DataLoader(data(lambda *_: here.recv(1)), 4), 3)):
            feed.check(())
        assert list(streamed.epoch(1, 0)) == list(range(8))
        assert here.recv(8) == b"abcd"


def test_data_that_are_slow_are_not_waited_for(monkeypatch):
    """That they were not checked is said."""
    monkeypatch.setattr(first_start, "_LIMIT_S", 0.3)
    begun = time.monotonic()
    (found,) = checked(data(lambda _, __: time.sleep(60)))
    assert time.monotonic() - begun < 30
    assert found.bearing is Bearing.NOTED
    assert "not checked" in found.words


def test_data_that_end_their_process_are_not_checked():
    """The child dies, and this process goes on."""
    (found,) = checked(data(lambda _, __: os._exit(3)))
    assert "not checked" in found.words


def test_a_collate_function_that_does_not_repeat_itself_is_named():
    """With the field of the batch."""
    loader = DataLoader(Plain(), 4, collate_fn=lambda items: {"x": torch.stack(items), "at": time.perf_counter_ns()})
    feed = LoaderFeed(loader, 3)
    feed.check(())
    (found,) = feed.findings
    assert "a collated batch, field 'at'" in found.words


class Stream(IterableDataset):
    def __init__(self, item):
        self.item = item

    def __iter__(self):
        return (self.item() for _ in range(N))


@pytest.mark.parametrize(
    ("item", "count"), [(lambda: torch.rand(1), 0), (time.perf_counter_ns, 1)], ids=["same", "clock"]
)
def test_a_stream_is_iterated_twice(item, count):
    """From the same state, under the same seeds."""
    feed = feed_of(Stream(item), batch_size=4, workers=0, rng_seed=3, shuffle=True)
    feed.check(())
    assert [finding.bearing for finding in feed.findings] == [Bearing.INEXACT] * count


class Kept:
    """A stream that comes back by its state, or forgets what decides the items."""

    def __init__(self, forgets):
        self.forgets, self.at, self.random = forgets, 0, random.Random(1)

    def __iter__(self):
        while self.at < 9:
            self.at += 1
            yield torch.tensor([self.at + self.random.random()])
        self.at = 0

    def state_dict(self):
        return {"at": self.at, "random": None if self.forgets else self.random.getstate()}

    def load_state_dict(self, state):
        self.at = state["at"]
        if state["random"] is not None:
            self.random.setstate(state["random"])


@pytest.mark.parametrize("forgets", [False, True])
def test_data_that_have_a_state_are_brought_back_by_it(forgets):
    """A state without the generator is followed by other items: no resume by it would be exact."""
    feed = feed_of(Kept(forgets), batch_size=4, workers=0, rng_seed=3, shuffle=True)
    feed.check(())
    words = [finding.words for finding in feed.findings]
    assert len(words) == forgets
    assert all("Kept.load_state_dict()" in one for one in words)


def test_an_object_that_is_iterated_is_tried_by_its_batches():
    """One without a loader of torch's."""

    class Batches:
        def __init__(self, at):
            self.at = at

        def __iter__(self):
            return (torch.tensor([next(self.at)]) for _ in range(3))

    for at, count in ((itertools.count(), 0), (iter(range(100)), 1)):
        feed = feed_of(Batches(at), batch_size=4, workers=0, rng_seed=3, shuffle=True)
        feed.check(())
        assert len([one for one in feed.findings if "of the stream" in one.words]) == count


def test_the_order_is_drawn_twice():
    """A sampler with a generator repeats itself; one that asks the clock does not."""
    assert checked(Plain(), sampler=closure()) == []
    (found,) = checked(Plain(), sampler=OfTheClock())
    assert "OfTheClock" in found.words


def test_a_sampler_that_holds_a_model_is_drawn_from_at_the_epochs_begin():
    """Training moves the model, so that nothing else can bring the order back. It is stored, and said."""

    class OfModel(OfTheClock):
        def __init__(self, model):
            self.model = model

        def __iter__(self):
            return iter(torch.argsort(self.model.weight.detach().reshape(-1)).tolist())

    def feed_with(model):
        return LoaderFeed(DataLoader(Plain(), 4, sampler=OfModel(model)), 3)

    torch.manual_seed(3)
    model = nn.Linear(1, N)
    feed = feed_with(model)
    feed.check(())
    (found,) = feed.findings
    assert found.bearing is Bearing.NOTED
    running = feed.epoch(1, 0)
    next(running)
    nn.init.normal_(model.weight)
    state = feed.state()
    rest = [batch.tolist() for batch in running]
    resumed = feed_with(model)
    resumed.load_state(state)
    assert [[row[0] for row in batch.tolist()] for batch in resumed.epoch(1, 1)] == [
        [row[0] for row in b] for b in rest
    ]


class _Tensors(TensorDataset):
    pass


def _with_items(items):
    vars(items)["__getitems__"] = lambda indices: [items[index] for index in indices]
    return items


ROWS_SET = TensorDataset(ROWS)


@pytest.mark.parametrize(
    ("loader", "is_read"),
    [
        (DataLoader(ROWS_SET, 2, shuffle=True, generator=torch.Generator()), False),
        (DataLoader(ROWS_SET, None), False),
        (DataLoader(_Tensors(ROWS), 2), True),
        (DataLoader(_with_items(TensorDataset(ROWS)), 2), True),
        (DataLoader(ROWS_SET, 2, collate_fn=lambda items: items), True),
        (DataLoader(ROWS_SET, 2, sampler=range(8)), True),
        (DataLoader(ROWS_SET, batch_sampler=[[0, 1]]), True),
        (DataLoader(ROWS_SET, 2, num_workers=1, worker_init_fn=print), True),
    ],
    ids=[
        "shuffled",
        "no batches",
        "a class",
        "items",
        "a collate function",
        "a sampler",
        "batches",
        "a worker's start",
    ],
)
def test_only_tensors_in_memory_that_torch_itself_reads_are_not_read_before(monkeypatch, loader, is_read):
    """A loader that is torch's in every part repeats itself. Anything of the user's is tried, in a child."""
    tried = []
    monkeypatch.setattr(first_start, "said_by_child", lambda *_: tried.append(1) or [{"part": "done"}])
    LoaderFeed(loader, 3).check(())
    assert bool(tried) is is_read
