"""Whether the backward pass of a loss was made: known from what its graph has saved, and never guessed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tolariad.trainer.torch_private.graphs import is_second_pass, was_used


def losses():
    model = nn.Linear(3, 2)
    return model(torch.ones(4, 3)).square().mean(), model(torch.ones(4, 3)).exp().mean()


def test_a_graph_that_was_gone_through_is_known_and_one_that_was_not_too():
    """Also with `retain_graph`, and where only a part of it was gone through."""
    one, other = losses()
    assert not was_used(one)
    one.backward(retain_graph=True)
    assert not was_used(one)
    one.backward()
    assert was_used(one)
    assert not was_used(one * other), "a part of it is not"
    assert not was_used(one + other)
    assert not was_used(torch.ones((), requires_grad=True))


def test_a_second_pass_is_known_by_its_error():
    """Another error of torch's is none."""
    one, _ = losses()
    one.backward()
    with pytest.raises(RuntimeError) as raised:
        one.backward()
    assert is_second_pass(raised.value)
    assert not is_second_pass(RuntimeError("out of memory"))
