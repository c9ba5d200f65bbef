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


# As they stand in journals.
KNOWN = {
    "two tensors": (lambda: (torch.arange(64.0).reshape(8, 8), torch.arange(8)), 1_659_706_239),
    "a list in a dict": (lambda: {"x": [torch.arange(9), torch.arange(3), torch.zeros(2)], "n": 3}, 2_834_376_394),
    "63 bytes": (lambda: torch.arange(63, dtype=torch.uint8), 1_859_829_124),
    "64 bytes": (lambda: torch.arange(64, dtype=torch.uint8), 654_471_631),
    "65 bytes": (lambda: torch.arange(65, dtype=torch.uint8), 745_779_689),
    "a view": (lambda: torch.arange(12).reshape(3, 4).T, 1_403_912_248),
    "a part": (lambda: torch.arange(1000)[37:800], 590_622_150),
    "an array": (lambda: np.arange(40, dtype=np.int64), 2_448_686_654),
    "texts": (lambda: ["a", "word"], 4_190_387_591),
    "an object with data": (
        lambda: collections.UserDict({"x": torch.arange(8.0), "y": torch.arange(8)}),
        4_058_415_013,
    ),
    "a parameter": (lambda: torch.nn.Parameter(torch.arange(8.0)), 1_548_857_414),
    "deep": (lambda: ((((), {}), [torch.arange(4)]), {"a": (1, 2.5)}), 260_258_832),
}


@pytest.mark.parametrize("kind", KNOWN)
def test_a_digest_stays_what_it_is(kind):
    """A re-run compares it with that of a journal, which an older version may have written."""
    made, digest = KNOWN[kind]
    assert digest_of([made()]) == digest


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


def test_a_batch_that_contains_itself_has_none():
    """Reading it would not end."""
    one = [torch.zeros(2)]
    one.append(one)
    assert digest_of([one]) == 0
