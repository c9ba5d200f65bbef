"""Tensors in memory as batches: the order depends on seed and epoch, from any position."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tolariad.trainer.data.feed import TensorFeed, to_device
from tolariad.trainer.data.loaders import feed_of
from tolariad.trainer.errors import SetupRefused

PLAIN = {"batch_size": 3, "workers": 0, "rng_seed": 1, "shuffle": True}


def batches(feed, epoch, start=0):
    return [batch[0].tolist() for batch in feed.epoch(epoch, start)]


def test_an_epoch_from_any_position_is_the_rest_of_the_epoch():
    """Starting after n batches gives the batches after the n-th, for every n."""
    feed = TensorFeed([torch.arange(10)], 3, rng_seed=5)
    whole = batches(feed, 2)
    assert [len(batch) for batch in whole] == [3, 3, 3, 1]
    assert feed.batches == 4
    for start in range(5):
        assert batches(feed, 2, start) == whole[start:]


def test_epochs_and_seeds_have_orders_of_their_own():
    """Each epoch holds every sample once, in another order; another seed gives another order."""
    feed = TensorFeed([torch.arange(50)], 50, rng_seed=5)
    orders = [batches(feed, epoch)[0] for epoch in (1, 2)]
    orders += batches(TensorFeed([torch.arange(50)], 50, rng_seed=6), 1)
    assert all(sorted(order) == list(range(50)) for order in orders)
    assert len({tuple(order) for order in orders}) == 3


def test_shuffling_draws_nothing_from_the_global_generator():
    """Dropout's draws do not depend on shuffling."""
    before = torch.get_rng_state()
    batches(TensorFeed([torch.arange(9)], 2, rng_seed=1), 1)
    assert torch.equal(torch.get_rng_state(), before)


def test_validation_data_stays_in_order():
    """Without a seed nothing is shuffled."""
    assert batches(TensorFeed([torch.arange(5)], 2, None), 1) == [[0, 1], [2, 3], [4]]


@pytest.mark.parametrize("tensors", [[torch.ones(2), torch.ones(3)], [torch.ones(0)]])
def test_tensors_that_make_no_data_set_are_refused(tensors):
    """Different lengths and empty tensors are refused by name."""
    with pytest.raises(ValueError, match="the same length, at least 1"):
        TensorFeed(tensors, 2, 1)


def test_nested_batches_are_moved_as_they_are():
    """Tuples stay tuples, dicts stay dicts, and other values are unchanged."""
    batch = {"x": (torch.ones(1), [torch.ones(2)]), "name": "a"}
    moved = to_device(batch, torch.device("cpu"))
    assert isinstance(moved["x"], tuple)
    assert moved["name"] == "a"


def test_a_batch_that_can_move_is_asked_to():
    """A mapping of transformers is no dict, and has the method `to`."""

    class Encoding:
        def to(self, device):
            return ("moved", device)

    assert to_device({"x": Encoding()}, torch.device("cpu")) == {"x": ("moved", torch.device("cpu"))}


def test_a_tuple_of_arrays_is_what_a_tuple_of_tensors_is():
    """Also one that cannot be written to, or whose rows are reversed; the same batches, in the same order."""
    inputs, labels = np.arange(20.0).reshape(10, 2), np.arange(10)
    fixed = inputs.copy()
    fixed.flags.writeable = False
    tensors = feed_of((torch.from_numpy(inputs), torch.from_numpy(labels)), **PLAIN)
    wanted = [[part.tolist() for part in batch] for batch in tensors.epoch(1, 0)]
    for given in ((fixed, labels), (np.ascontiguousarray(inputs[::-1])[::-1], labels), (inputs, torch.arange(10))):
        assert [[part.tolist() for part in batch] for batch in feed_of(given, **PLAIN).epoch(1, 0)] == wanted


def test_an_array_of_texts_and_arrays_of_other_lengths_are_refused():
    """With a sentence, before torch says something of stacks."""
    with pytest.raises(SetupRefused, match="array of <U1 has no tensor"):
        feed_of((np.zeros(3), np.array(["a", "b", "c"])), **PLAIN)
    with pytest.raises(ValueError, match="same length"):
        feed_of((np.zeros(3), np.zeros(4)), **PLAIN)


def test_a_list_of_arrays_stays_a_data_set_of_items():
    """As a DataLoader takes it."""
    feed = feed_of([np.zeros(2), np.ones(2), np.ones(2)], **PLAIN)
    assert [tuple(batch.shape) for batch in feed.epoch(1, 0)] == [(3, 2)]
