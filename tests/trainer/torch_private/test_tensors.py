"""Versions of tensors, and tensors in nested values, in both ways."""

from __future__ import annotations

from collections import OrderedDict, namedtuple

import pytest
import torch

from tests.trainer.torch_private.ways import WAYS, module

Pair = namedtuple("Pair", "one other")  # noqa: PYI024 - what a data set may return


def test_a_version_rises_with_each_write_or_is_unknown():
    """Unknown the public way: then a reader compares values."""
    tensor = torch.zeros(2)
    version_of = module("tensors", "private").version_of
    before = version_of(tensor)
    tensor.add_(1)
    assert version_of(tensor) == before + 1
    public = module("tensors", "public")
    assert public.version_of(tensor) == public.UNKNOWN


@pytest.mark.parametrize("way", WAYS)
def test_leaves_of_nested_values_are_found_and_replaced(way):
    """Lists, tuples, named tuples, dicts of every kind; their classes and keys stay."""
    of_way = module("tensors", way)
    value = {"b": [1, (2, None)], "a": Pair(3, OrderedDict(x=4)), "c": []}
    assert sorted(one for one in of_way.leaves_in(value) if one is not None) == [1, 2, 3, 4]
    found = of_way.with_leaves(lambda one: one and one * 10, value)
    assert found == {"b": [10, (20, None)], "a": Pair(30, OrderedDict(x=40)), "c": []}
    assert [type(found["a"]), type(found["a"].other)] == [Pair, OrderedDict]
    assert value["a"].one == 3


@pytest.mark.parametrize("way", WAYS)
def test_outputs_of_transformers_models_are_nested_values(way):
    """They are mappings with attributes."""
    outputs = pytest.importorskip("transformers.modeling_outputs")
    of_way = module("tensors", way)
    output = outputs.CausalLMOutput(logits=torch.ones(1), hidden_states=(torch.zeros(1), torch.zeros(1)))
    assert len(of_way.leaves_in(output)) == 3
    found = of_way.with_leaves(lambda one: one + 1, output)
    assert type(found) is outputs.CausalLMOutput
    assert found.logits == found["logits"] == 2
    assert output.logits == 1
