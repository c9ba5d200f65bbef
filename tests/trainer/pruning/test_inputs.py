"""The inputs of a model as plain data, and noise that the model can be called with."""

from __future__ import annotations

import itertools

import pytest
import torch

from tolariad.trainer.pruning.inputs import described, noise_like

CPU = torch.device("cpu")


def noise(value, seed=1):
    return noise_like(described(value), torch.Generator().manual_seed(seed), CPU)


def test_labels_that_do_not_count_lie_apart_from_the_others():
    """A model of transformers that computes its own loss gets -100 for padding: what lies between is no label."""
    labels = torch.tensor([[3, 4, 5, -100], [7, -100, -100, -100]]).repeat(8, 1)
    found = noise(labels)

    assert described(labels)["tensor"]["runs"] == [[-100, -100], [3, 5], [7, 7]]
    assert (found.shape, found.dtype) == (labels.shape, labels.dtype)
    assert set(found.flatten().tolist()) == {-100, 3, 4, 5, 7}


def test_of_many_runs_the_narrowest_gaps_are_closed(seed):
    """So that the description of a batch of text stays short. The noise is within it."""
    generator = torch.Generator().manual_seed(seed)
    words = torch.cat([torch.randint(0, 50_000, (500,), generator=generator), torch.tensor([-100, 90_000])])
    runs = described(words)["tensor"]["runs"]
    found = noise(words, seed)

    assert len(runs) == 8
    assert (runs[0], runs[-1]) == ([-100, -100], [90_000, 90_000])
    assert all(one[1] < other[0] for one, other in itertools.pairwise(runs))
    assert all(any(first <= word <= last for first, last in runs) for word in [*words.tolist(), *found.tolist()])


@pytest.mark.parametrize(
    "value",
    [torch.zeros(0, dtype=torch.int64), torch.tensor([True, False]), torch.full((3,), 2**40), torch.tensor(5)],
)
def test_integers_of_every_kind_have_noise_of_their_kind(value):
    """None at all, truth values, large ones, a single one."""
    found = noise(value)

    assert (found.shape, found.dtype) == (value.shape, value.dtype)
    assert set(found.flatten().tolist()) <= set(value.flatten().tolist())


def test_what_an_older_version_recorded_is_read():
    """It kept the range alone, also of floats."""
    of_words = {"tensor": {"dtype": "int64", "least": 3, "most": 5, "shape": [4, 50]}}
    of_floats = {"tensor": {"dtype": "float32", "least": 0, "most": 0, "shape": [4, 5]}}
    words, floats = (noise_like(one, torch.Generator().manual_seed(1), CPU) for one in (of_words, of_floats))

    assert set(words.flatten().tolist()) == {3, 4, 5}
    assert (floats.shape, floats.dtype) == ((4, 5), torch.float32)
