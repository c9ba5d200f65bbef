"""The codec of nested plain data: exact types, a closed set of them, and clear errors for others."""

from __future__ import annotations

import enum
from collections import OrderedDict, defaultdict, namedtuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tolariad.trainer.checkpoints.tree import NotCapturable, decode_tree, encode_tree, made

CPU = torch.device("cpu")

_scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**80), 2**80)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=("Cs",)))
    | st.binary()
    | st.complex_numbers(allow_nan=False)
)
_keys = st.one_of(st.text(max_size=4), st.integers(-5, 5), st.booleans(), st.tuples(st.integers(), st.text(max_size=2)))
_trees = st.recursive(
    _scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(_keys, inner, max_size=4)
        | st.dictionaries(_keys, inner, max_size=3).map(OrderedDict)
    ),
    max_leaves=20,
)


def through(value):
    data, tensors = encode_tree(value, "x")
    return made(decode_tree(data, tensors), CPU)


def same(a, b):
    """Return whether two values are equal in value, type and order; tensors and arrays by their bytes."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, np.ndarray | np.generic):
        return a.dtype == b.dtype and np.shape(a) == np.shape(b) and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return len(a) == len(b) and all(
            same(k, m) and same(v, w) for (k, v), (m, w) in zip(a.items(), b.items(), strict=True)
        )
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b and str(a) == str(b)


@settings(max_examples=150, deadline=None)
@given(_trees)
def test_plain_data_comes_back_in_value_type_and_order(value):
    """Tuples stay tuples, integer keys stay integers, and keys keep their order."""
    assert same(through(value), value)


def test_leaves_of_numpy_and_torch_come_back_exactly():
    """Scalars keep their type, arrays and tensors their shape, NaN its bits."""
    value = {
        "scalars": [np.float64(0.1), np.float32("nan"), np.int8(-3), np.bool_(True), np.uint64(2**64 - 1)],
        "array": np.arange(6, dtype=">i4").reshape(2, 3),
        "tensors": (torch.tensor(3.0), torch.zeros(0, 2), torch.ones(2, dtype=torch.bfloat16), torch.tensor(True)),
        5: torch.arange(3),
        "5": torch.arange(4),
    }
    assert same(through(value), value)


def test_tensors_come_back_as_copies():
    """A decoded value may be changed in place without changing its source."""
    data, tensors = encode_tree({"a": torch.zeros(2)}, "x")
    made(decode_tree(data, tensors), CPU)["a"].add_(1)
    assert torch.equal(tensors["x.a"], torch.zeros(2))


class Colour(enum.IntEnum):
    RED = 1


@pytest.mark.parametrize(
    "value",
    [
        object(),
        {1, 2},
        Colour.RED,
        defaultdict(int),
        namedtuple("Point", "x")(1),  # noqa: PYI024
        lambda: None,
        torch.float32,
        torch.Size([1]),
        bytearray(b"x"),
        np.array(["text"]),
        "\ud800",
        torch.eye(2).to_sparse(),
        torch.empty(1, device="meta"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_anything_else_is_refused_by_its_path(value):
    """The error names the place inside the state, so that the user finds it."""
    with pytest.raises(NotCapturable) as caught:
        encode_tree({"outer": [0, {"inner": value}]}, "task")
    assert caught.value.path == "task.outer.1.inner"


def test_a_structure_that_contains_itself_is_refused():
    """Infinite nesting gives a sentence, not a crash."""
    loop = []
    loop.append(loop)
    with pytest.raises(NotCapturable, match="contain itself"):
        encode_tree(loop, "task")
