"""The safetensors library can read the streamed file, and the parser can read the library's files."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import load, save

from tolariad.storage.tensor_file import TensorEntry, header, layout, parse


def test_the_header_is_read_by_the_safetensors_library():
    """Names, dtypes, shapes and offsets come back, wider types first."""
    entries = layout(
        [
            TensorEntry(name="b", dtype="U8", shape=(3,), size=3, element_size=1),
            TensorEntry(name="a", dtype="U8", shape=(), size=1, element_size=1),
            TensorEntry(name="z", dtype="F32", shape=(1, 2), size=8, element_size=4),
        ]
    )
    read = load(header(entries) + b"\0" * 8 + b"\x07" + b"abc")
    assert [entry.name for entry in entries] == ["z", "a", "b"]
    assert read["z"].shape == (1, 2)
    assert read["a"].item() == 7
    assert bytes(read["b"]) == b"abc"


def test_data_begins_at_a_multiple_of_eight():
    """The header ends on 8 bytes for any names."""
    for length in range(1, 12):
        head = header([TensorEntry(name="n" * length, dtype="F64", shape=(1,), size=8, element_size=8)])
        assert len(head) % 8 == 0
        assert json.loads(head[8:])


def test_a_file_of_the_safetensors_library_is_parsed():
    """Names, dtypes, shapes and bytes, also of an empty tensor; labels are ignored."""
    written = save({"a": np.arange(6, dtype=np.int16).reshape(2, 3), "none": np.zeros((0, 4))}, {"who": "me"})
    tensors = parse(written)
    assert {name: (t.entry.dtype, t.entry.shape, t.entry.size) for name, t in tensors.items()} == {
        "a": ("I16", (2, 3), 12),
        "none": ("F64", (0, 4), 0),
    }
    assert bytes(tensors["a"].data) == np.arange(6, dtype=np.int16).tobytes()
    assert tensors["a"].entry.element_size == 2


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "0 bytes"),
        (b"\xff" * 8, "header would end at"),
        ((2).to_bytes(8, "little") + b"[]", "Expected `object`"),
        (
            (60).to_bytes(8, "little") + b'{"a":{"dtype":"U8","shape":[9],"data_offsets":[0,9]}}'.ljust(60),
            "a would lie",
        ),
    ],
    ids=["empty", "no header", "no table", "cut short"],
)
def test_what_is_no_safetensors_file_is_refused(content, why):
    """The error says what is wrong with it."""
    with pytest.raises(ValueError, match=why):
        parse(content)


@pytest.mark.parametrize(
    "place",
    [
        {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [-2, -2], "data_offsets": [0, 16]},
        {"dtype": "F32", "shape": [3], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [0], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [2**62, 2**62], "data_offsets": [0, 0]},
        {"dtype": "F32", "shape": [1] * 65, "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]},
        {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]},
        {"dtype": "F32", "shape": [10**30], "data_offsets": [0, 4]},
        {"dtype": 5, "shape": [1], "data_offsets": [0, 4]},
        [],
    ],
)
def test_a_tensor_that_cannot_be_is_refused(place):
    """A shape that does not fit the bytes, or none at all."""
    head = json.dumps({"w": place}).encode()
    with pytest.raises(ValueError, match=r"."):
        parse(len(head).to_bytes(8, "little") + head + b"\0" * 16)


def test_a_header_of_values_within_each_other_is_refused():
    """It would exhaust the stack."""
    head = b'{"w": ' + b"[" * 1_000_000
    with pytest.raises(ValueError, match="nested"):
        parse(len(head).to_bytes(8, "little") + head)
