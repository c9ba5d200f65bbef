"""Frames come back as they were, and other bytes are refused before a body is read."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tolariad.strategy.frames import BODY_BYTES_MAX, ENDS, HEADER_BYTES, FrameRefused, Kind, frame, read_header


@given(st.sampled_from(Kind), st.integers(0, 2**64 - 1), st.binary(max_size=300))
def test_a_frame_comes_back(kind, generation, body):
    """Length, kind and generation, in the order and with the bytes that docstring and liars use."""
    data = frame(kind, generation, body)

    assert read_header(data) == (len(body), kind, generation)
    assert data[HEADER_BYTES:] == body
    assert data[:HEADER_BYTES] == struct.pack("<IBQ", len(body), kind, generation)


@given(st.binary(min_size=HEADER_BYTES, max_size=HEADER_BYTES))
def test_any_header_is_read_or_refused(data):
    """A length above the limit and an unknown kind are refused; nothing else is raised."""
    size, number, _ = struct.unpack("<IBQ", data)
    if size <= BODY_BYTES_MAX and number in set(Kind):
        assert read_header(data).size == size
    else:
        with pytest.raises(FrameRefused):
            read_header(data)


def test_a_body_has_64_kib_at_most():
    """Both sides hold to it."""
    assert len(frame(Kind.STEP, 1, bytes(BODY_BYTES_MAX))) == HEADER_BYTES + BODY_BYTES_MAX == 13 + 65_536
    with pytest.raises(FrameRefused, match="at most 65536"):
        frame(Kind.STEP, 1, bytes(BODY_BYTES_MAX + 1))
    with pytest.raises(FrameRefused, match="announces 65537"):
        read_header(struct.pack("<IBQ", BODY_BYTES_MAX + 1, Kind.STATE, 1))


def test_every_request_can_be_refused():
    """An exception of the user's code always has an answer."""
    assert all(Kind.REFUSED in ends for ends in ENDS.values())
    assert set(ENDS) == {Kind.LOAD, Kind.STEP, Kind.VOTE}
