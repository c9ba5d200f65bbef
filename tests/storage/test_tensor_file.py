"""The streamed file is what the safetensors library writes and reads."""

from __future__ import annotations

import json

from safetensors.numpy import load

from tolariad.storage.tensor_file import Entry, header, layout


def test_the_header_is_read_by_the_safetensors_library():
    """Names, dtypes, shapes and offsets come back, wider types first."""
    entries = layout(
        [
            Entry(name="b", dtype="U8", shape=(3,), size=3, element_size=1),
            Entry(name="a", dtype="U8", shape=(), size=1, element_size=1),
            Entry(name="z", dtype="F32", shape=(1, 2), size=8, element_size=4),
        ]
    )
    read = load(header(entries) + b"\0" * 8 + b"\x07" + b"abc")
    assert [entry.name for entry in entries] == ["z", "a", "b"]
    assert read["z"].shape == (1, 2)
    assert read["a"].item() == 7
    assert bytes(read["b"]) == b"abc"


def test_data_begins_at_a_multiple_of_eight():
    """Whatever the names are, the header ends on 8 bytes."""
    for length in range(1, 12):
        head = header([Entry(name="n" * length, dtype="F64", shape=(1,), size=8, element_size=8)])
        assert len(head) % 8 == 0
        assert json.loads(head[8:])
