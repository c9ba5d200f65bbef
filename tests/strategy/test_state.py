"""The memory of a strategy is plain and small, and survives a restart."""

from __future__ import annotations

import datetime as dt
import math

import msgspec
import pytest

from tolariad.strategy import STATE_BYTES_MAX, StateRefused, read_state, write_state


def nested(levels: int) -> list:
    return [] if levels == 0 else [nested(levels - 1)]


@pytest.mark.parametrize("state", [None, 0, -1.5, "x", [], {"a": [1, {"b": None}]}, True, nested(30)])
def test_plain_values_come_back(state):
    """Also as the same type; a tuple comes back as a list."""
    assert read_state(write_state(state)) == state
    assert read_state(write_state((1, (2,)))) == [1, [2]]
    assert math.isnan(read_state(write_state({"loss": math.nan}))["loss"])


@pytest.mark.parametrize(
    ("state", "why"),
    [
        ({1: "a"}, "keys must be texts"),
        ({"a": {1, 2}}, r"state\['a'\] is of type set"),
        ({"a": [b"raw"]}, r"state\['a'\]\[0\] is of type bytes"),
        (dt.timedelta(1), "is of type timedelta"),
        (object(), "is of type object"),
        (2**70, "cannot be kept"),
        ("\ud800", "cannot be kept"),
        ("x" * STATE_BYTES_MAX, "at most 32768"),
        (nested(40), "nested deeper"),
    ],
)
def test_other_values_are_refused_with_their_place(state, why):
    """The text says which entry it is."""
    with pytest.raises(StateRefused, match=why):
        write_state(state)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x91" * 50_000,
        b"\x91" * 20_000,
        msgspec.msgpack.encode("x" * STATE_BYTES_MAX),
        msgspec.msgpack.encode({"a": b"raw"}),
        msgspec.msgpack.encode({1: 2}),
        msgspec.msgpack.encode(msgspec.msgpack.Ext(5, b"x")),
    ],
)
def test_bytes_that_are_no_state_are_refused(data):
    """Damage, depth, and types that no state has."""
    with pytest.raises(StateRefused):
        read_state(data)
