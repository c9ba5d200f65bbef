"""The digest of a batch: the same for equal batches, another one for others, and never an exception."""

from __future__ import annotations

import collections

import numpy as np
import pytest
import torch

from tolariad.trainer.data.digest import digest_of


def _batch(value):
    return {"x": torch.full((8, 4), value), "y": torch.arange(8)}


PAIRS = {
    "a tensor": (torch.zeros(8), torch.ones(8)),
    "its last value": (torch.zeros(4096), torch.cat([torch.zeros(4095), torch.ones(1)])),
    "its length": (torch.zeros(8), torch.zeros(16)),
    "a tuple": ((torch.zeros(2), torch.arange(3)), (torch.zeros(2), torch.arange(1, 4))),
    "a dict": (_batch(0.0), _batch(1.0)),
    "an array": (np.zeros(4), np.ones(4)),
    "a view": (torch.arange(12).reshape(3, 4).T, torch.arange(1, 13).reshape(3, 4).T),
    "texts": (["a", "b"], ["a", "c"]),
    "a number": (1.0, 2.0),
    "an object with data": (collections.UserDict(_batch(0.0)), collections.UserDict(_batch(1.0))),
    "half precision": (torch.zeros(8, dtype=torch.bfloat16), torch.ones(8, dtype=torch.bfloat16)),
    "a gradient": (torch.zeros(3, requires_grad=True), torch.ones(3, requires_grad=True)),
}


@pytest.mark.parametrize("kind", PAIRS)
def test_batches_that_differ_have_different_digests(kind):
    """And equal ones have equal ones, wherever they lie in memory."""
    one, other = PAIRS[kind]
    assert 0 < digest_of([one]) < 2**32
    assert digest_of([one]) != digest_of([other])
    if isinstance(one, torch.Tensor):
        assert digest_of([one]) == digest_of([one.detach().clone()])


def test_the_micro_batches_of_a_step_have_one_digest():
    """Their order counts."""
    one, other = torch.zeros(2), torch.ones(2)
    assert digest_of([one, other]) != digest_of([other, one])


@pytest.mark.parametrize(
    "batch",
    [
        None,
        (),
        {},
        object(),
        torch.empty(0),
        torch.tensor(1.0),
        torch.eye(3).to_sparse(),
        torch.zeros(3, device="meta"),
        torch.zeros(2, 2, dtype=torch.complex64).conj(),
        np.array([None]),
        np.zeros(4)[::2],
        np.array("text"),
    ],
    ids=lambda batch: type(batch).__name__,
)
def test_any_batch_has_a_digest(batch):
    """What cannot be read counts by its size only."""
    assert digest_of([batch]) == digest_of([batch])


def test_a_batch_whose_own_methods_raise_has_none():
    """The step does not need it."""

    class Raising(dict):
        def values(self):
            raise ValueError

    assert digest_of([Raising(a=1)]) == 0
