"""Loaders that keep their own position (torchdata) resume within an epoch with the same batches and draws."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from tests.trainer.data.stops import differing_stops
from tests.trainer.tasks.augmenting import Counting, Images
from tolariad.trainer.checkpoints.tree import decode_tree, encode_tree, made
from tolariad.trainer.data.loaders import StatefulFeed, feed_of

nodes = pytest.importorskip("torchdata.nodes", reason="torchdata (extra `data`) is not installed")
torchdata = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata (extra `data`) is not installed")
TASKS = f"{Path(__file__).parents[1] / 'tasks'}/augmenting.py"


def feed(data, workers=0, **more):
    loader = torchdata.StatefulDataLoader(data, 4, num_workers=workers, **more)
    return feed_of(loader, batch_size=4, workers=0, rng_seed=3, shuffle=True)


def equal(batches, others):
    pairs = zip(batches, others, strict=True)
    return all(torch.equal(a, b) for one, other in pairs for a, b in zip(one, other, strict=True))


def through_a_checkpoint(state):
    """Return the state as a checkpoint saves and restores it."""
    body, tensors = encode_tree({"data": state}, "data")
    return made(decode_tree(body, tensors)["data"], torch.device("cpu"))


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (1, False), (2, True)])
def test_every_position_of_every_epoch_is_taken_up_exactly(workers, persistent):
    """Order and draws from three generators, with and without workers; also after an epoch's end."""
    more = {"shuffle": True, "persistent_workers": persistent}
    whole = feed(Images(18), workers, **more)
    assert isinstance(whole, StatefulFeed)
    epochs = {epoch: list(whole.epoch(epoch, 0)) for epoch in (1, 2)}
    assert not equal(epochs[1][:4], epochs[2][:4])
    for stop in (2, 5):
        first = feed(Images(18), workers, **more)
        batches = first.epoch(1, 0)
        taken = [next(batches) for _ in range(stop)]
        assert equal(taken, epochs[1][:stop])
        if stop == 5:
            assert next(batches, None) is None
        resumed = feed(Images(18), workers, **more)
        resumed.load_state(through_a_checkpoint(first.state()))
        if stop < 5:
            assert equal(list(resumed.epoch(1, stop)), epochs[1][stop:])
        assert equal(list(resumed.epoch(2, 0)), epochs[2]), stop
        first.end_workers(), resumed.end_workers()
    whole.end_workers()


def test_asking_for_the_state_draws_nothing_and_changes_nothing():
    """Before the first batch, right after a restore, and within an epoch."""
    expected = list(feed(Images(18), shuffle=True).epoch(1, 0))
    asked, resumed = feed(Images(18), shuffle=True), feed(Images(18), shuffle=True)
    before = torch.get_rng_state()
    assert asked.state() is None
    batches = asked.epoch(1, 0)
    asked.state()
    got = [next(batches) for _ in range(2)]
    state = through_a_checkpoint(asked.state())
    asked.state()
    assert equal(got + list(batches), expected)
    resumed.load_state(state)
    rest = resumed.epoch(1, 2)
    resumed.state()
    assert equal(list(rest), expected[2:])
    assert torch.equal(torch.get_rng_state(), before)


def test_data_with_a_state_of_its_own_goes_on_after_an_epochs_end():
    """A stream that never repeats itself: the second epoch begins where the first ended, also after a restore."""
    whole = feed(Counting())
    numbers = [torch.cat(list(whole.epoch(epoch, 0))).tolist() for epoch in (1, 2)]
    assert numbers[1][0] == numbers[0][-1] + 1
    first = feed(Counting())
    list(first.epoch(1, 0))
    resumed = feed(Counting())
    resumed.load_state(through_a_checkpoint(first.state()))
    assert torch.cat(list(resumed.epoch(2, 0))).tolist() == numbers[1]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_run_over_a_stateful_loader_resumes_to_the_same_bits(resumes, configured, workers):
    """Its state is part of checkpoints within an epoch."""
    configuration = configured(f"{TASKS}:Stateful", epochs=2, batch_size=8, workers=workers)
    resumes(configuration, 2, (3, 5), (8, 10))


def _nodes(map_of=None, *, ahead=False):
    """Return what makes a loader of nodes whose mapper draws, or another one."""
    draw = map_of or (lambda index: torch.tensor([index, random.random(), torch.rand(()).item()], dtype=torch.float64))

    def make():
        node = nodes.Batcher(nodes.Mapper(nodes.IterableWrapper(range(14)), draw), 4, drop_last=False)
        node = nodes.Mapper(node, torch.stack)
        return nodes.Loader(nodes.Prefetcher(node, 1) if ahead else node)

    return make


def test_a_loader_of_nodes_resumes_at_each_place():
    """It reads a batch when it is made from a state: that one gets its own seed. At an epoch's end nothing is left."""
    differing, found, _ = differing_stops(_nodes(), None, checked=True)
    assert differing == []
    assert not found


def test_nodes_that_a_thread_reads_ahead_are_named_if_they_draw():
    """Nobody knows which seed is set at that moment. Without draws they are exact."""
    assert any(
        "a thread beside the training" in one.words for one in differing_stops(_nodes(ahead=True), [], checked=True)[1]
    )
    drawless = _nodes(lambda index: torch.tensor([index]), ahead=True)
    differing, found, _ = differing_stops(drawless, [(1, 2), (2, 0)], checked=True)
    assert (differing, found) == ([], set())
