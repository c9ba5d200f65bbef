"""TensorBoard's event files, as bytes. Pure.

A file is a sequence of records: the length (64 bits), a checksum of it, one `tensorboard.Event` in protobuf's encoding,
a checksum of that. All numbers are little-endian. Source: tensorflow/core/lib/io/record_writer.cc, and event.proto,
summary.proto and tensor.proto beside it.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

import google_crc32c

_HEAD: Final = struct.Struct("<Q")
_SUM: Final = struct.Struct("<I")
_DOUBLE: Final = struct.Struct("<d")
_FLOAT: Final = struct.Struct("<f")
# The keys of the fields: number of the field * 8 + kind (0 varint, 1 64 bits, 2 bytes, 5 32 bits).
_WALL: Final = b"\x09"
_STEP: Final = b"\x10"
_VERSION: Final = b"\x1a"
_SUMMARY: Final = b"\x2a"
_VALUE: Final = b"\x0a"
_TAG: Final = b"\x0a"
_SIMPLE: Final = b"\x15"
_TENSOR: Final = b"\x42"
_METADATA: Final = b"\x4a"
_TEXT_PLUGIN: Final = b"\x0a\x06\x0a\x04text"
# DT_STRING, and a shape of one element.
_STRINGS: Final = b"\x08\x07\x12\x04\x12\x02\x08\x01"
_STRING: Final = b"\x42"


def record(event: bytes) -> bytes:
    """Return the bytes of a record with this event."""
    head = _HEAD.pack(len(event))
    return b"".join((head, _SUM.pack(_masked(head)), event, _SUM.pack(_masked(event))))


def first(wall_ns: int) -> bytes:
    """Return the record with which every file begins."""
    return record(_stamp(wall_ns, 0) + _with_length(_VERSION, b"brain.Event:2"))


def scalars(wall_ns: int, step: int, values: Iterable[tuple[str, float]]) -> bytes:
    """Return the record of numbers at a step. They are kept as 32-bit floats; larger ones become infinite."""
    parts = [_scalar(tag, value) for tag, value in values]
    return record(_stamp(wall_ns, step) + _with_length(_SUMMARY, b"".join(parts)))


def text(wall_ns: int, step: int, tag: str, words: str) -> bytes:
    """Return the record of a text at a step, which TensorBoard reads as Markdown."""
    tensor = _STRINGS + _with_length(_STRING, words.encode("utf-8", "replace"))
    value = _tag(tag) + _with_length(_METADATA, _TEXT_PLUGIN) + _with_length(_TENSOR, tensor)
    return record(_stamp(wall_ns, step) + _with_length(_SUMMARY, _with_length(_VALUE, value)))


def _masked(data: bytes) -> int:
    value: int = google_crc32c.value(data)
    return ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _stamp(wall_ns: int, step: int) -> bytes:
    return b"".join((_WALL, _DOUBLE.pack(wall_ns / 1e9), _STEP, _varint(step)))


def _scalar(tag: str, value: float) -> bytes:
    head, after = _scalar_head(tag)
    try:
        number = _FLOAT.pack(value)
    except OverflowError:
        number = _FLOAT.pack(math.copysign(math.inf, value))
    return b"".join((head, after, number))


@lru_cache(maxsize=1024)
def _scalar_head(tag: str) -> tuple[bytes, bytes]:
    """Return what of a number does not depend on it: key and length of the value, and its tag."""
    inside = _tag(tag) + _SIMPLE
    return _VALUE + _varint(len(inside) + 4), inside


def _tag(tag: str) -> bytes:
    return _with_length(_TAG, tag.encode("utf-8", "replace"))


def _with_length(key: bytes, content: bytes) -> bytes:
    return b"".join((key, _varint(len(content)), content))


def _varint(number: int) -> bytes:
    # A negative one would have ten bytes; steps and lengths are not.
    found = bytearray()
    number = max(0, number)
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)
