"""The frames between the daemon and the process of a user's strategy.

A frame begins with the length of its body (4 bytes, little-endian), its kind (1 byte), and the generation of its
question (8 bytes). The body follows. One request is answered by one exchange: any number of COMMAND frames up to 16,
and one frame that ends it. Promises: a body has at most 64 KiB; both sides refuse a longer one before they read it.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

BODY_BYTES_MAX: Final = 64 * 1024
_HEADER: Final = struct.Struct("<IBQ")
HEADER_BYTES: Final = _HEADER.size


class Kind(enum.IntEnum):
    """The type of a frame. The body of STEP is a SystemStatePacket, that of COMMAND an AdaptationCommand.

    The body of LOAD, VOTE and STATE is a state (`tolariad.strategy.state`). READY: a `Ready`. REFUSED: a text in UTF-8.
    """

    LOAD = 1  # to the strategy: go back to this state
    STEP = 2  # to the strategy: decide
    VOTE = 3  # to the strategy: can you go back to this state?
    READY = 16  # the first frame of the strategy
    COMMAND = 17
    STATE = 18  # ends the answer to STEP
    DONE = 19  # ends the answer to LOAD and VOTE
    REFUSED = 20  # instead of READY or of any answer: why not


ENDS: Final[Mapping[Kind, frozenset[Kind]]] = {
    Kind.LOAD: frozenset({Kind.DONE, Kind.REFUSED}),
    Kind.STEP: frozenset({Kind.STATE, Kind.REFUSED}),
    Kind.VOTE: frozenset({Kind.DONE, Kind.REFUSED}),
}


class Frame(NamedTuple):
    """One frame."""

    kind: Kind
    generation: int
    body: bytes


class Header(NamedTuple):
    """The frame without its body."""

    size: int
    kind: Kind
    generation: int


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """The strategy was found. `state`: its state at the beginning."""

    source_hash: str
    state: bytes


class FrameRefused(ValueError):
    """The bytes are no frame of this protocol. Nothing after them can be read."""


def frame(kind: Kind, generation: int, body: bytes = b"") -> bytes:
    """Return the bytes of a frame. Raises FrameRefused if the body is too long."""
    if len(body) > BODY_BYTES_MAX:
        raise FrameRefused(f"A {kind.name} frame has {len(body)} bytes; at most {BODY_BYTES_MAX} are allowed.")
    return _HEADER.pack(len(body), kind, generation) + body


def read_header(data: bytes) -> Header:
    """Return the header in the first HEADER_BYTES. Raises FrameRefused: no frame, or a body that is too long."""
    size, number, generation = _HEADER.unpack_from(data)
    try:
        kind = Kind(number)
    except ValueError:
        raise FrameRefused(f"There is no kind {number} of frames.") from None
    if size > BODY_BYTES_MAX:
        raise FrameRefused(f"A {kind.name} frame announces {size} bytes; at most {BODY_BYTES_MAX} are allowed.")
    return Header(size, kind, generation)
