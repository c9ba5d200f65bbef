"""Loaders that keep their own position (torchdata) resume within an epoch with the same batches and draws."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.trainer.tasks.augmenting import Counting, Images
from tolariad.trainer.checkpoints.tree import decode_tree, encode_tree, made
from tolariad.trainer.data.loaders import StatefulFeed, feed_of

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
