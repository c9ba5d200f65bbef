"""The buckets of DistributedDataParallel get their final layout before the first backward pass."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from tests.trainer.torch_private.ways import way
from tolariad.trainer.torch_private import choice, ddp

__all__ = ["way"]


@pytest.fixture
def wrapped():
    """A model in the wrapper, in a group of this process alone."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield DistributedDataParallel(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)))
    distributed.destroy_process_group()


def test_the_layout_is_final_before_the_first_backward_pass(way, wrapped):
    """Else the second backward pass has another one; with public names alone nothing is done."""
    found = ddp.fix_buckets(wrapped)
    wrapped(torch.ones(1, 2)).sum().backward()

    assert found is (None if choice.ONLY_PUBLIC else True)
    assert ddp.fix_buckets(wrapped) is (None if choice.ONLY_PUBLIC else False)


def test_the_sending_of_buffers_goes_through_a_call(way):
    """In each forward pass that may send them; a copy of the model, also a pickled one, sends its own, untold."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    model = DistributedDataParallel(nn.BatchNorm1d(2))
    told = []
    ddp.around_buffers(model, lambda send: (told.append(1), send()))
    model(torch.ones(3, 2))
    copies = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
    for one in copies:
        one(torch.ones(3, 2))
    distributed.destroy_process_group()

    assert told == ([] if choice.ONLY_PUBLIC else [1])


def test_a_communication_hook_is_seen(wrapped):
    """It sums gradients in a way of its own."""
    assert not ddp.has_hook(wrapped)
    wrapped.register_comm_hook(None, lambda _, bucket: bucket.gradients())
    assert ddp.has_hook(wrapped)
