"""The layout of a safetensors file, so that tensors are streamed to disk without a second copy, and read without torch.

Promises: equal tensors give equal bytes (entries are sorted, nothing else is written); data is aligned for its type,
because wider types come first and the header ends on 8 bytes. It must not know: where tensors come from.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class TensorEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor: its dtype as safetensors names it, its shape, its size and the size of one element in bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size: int
    element_size: int


def layout(entries: Sequence[TensorEntry]) -> list[TensorEntry]:
    """The order of the data: wider element types first, then by name."""
    return sorted(entries, key=lambda entry: (-entry.element_size, entry.name))


def header(entries: Sequence[TensorEntry], labels: Mapping[str, str] | None = None) -> bytes:
    """The bytes before the data of `entries`, which must be in the order of `layout`; `labels` are for people."""
    table: dict[str, object] = {"__metadata__": labels} if labels else {}
    offset = 0
    for entry in entries:
        end = offset + entry.size
        table[entry.name] = {"dtype": entry.dtype, "shape": entry.shape, "data_offsets": (offset, end)}
        offset = end
    text = msgspec.json.encode(table)
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


class Part(NamedTuple):
    """What one file holds of a tensor: the entry as it stands there, and the first byte of the tensor that it holds."""

    entry: TensorEntry
    first: int


def distribute(entries: Sequence[TensorEntry], file_bytes: int) -> list[list[Part]]:
    """Files of at most `file_bytes` with the data of `entries`, which must be in the order of `layout`; at least one.

    A tensor that is larger than a file lies in several, each time as a row of elements under its own name.
    """
    room = max(1024, file_bytes - len(header(entries)))
    files: list[list[Part]] = [[]]
    left = room
    for entry in entries:
        if entry.size > room:
            files += [[part] for part in _cut(entry, room)]
            files.append([])
            left = room
            continue
        if entry.size > left:
            files.append([])
            left = room
        files[-1].append(Part(entry, 0))
        left -= entry.size
    return [file for file in files if file] or [[]]


def _cut(entry: TensorEntry, room: int) -> list[Part]:
    """Rows of as many elements as a file has room for."""
    step = room // entry.element_size * entry.element_size
    return [
        Part(msgspec.structs.replace(entry, shape=(size // entry.element_size,), size=size), first)
        for first in range(0, entry.size, step)
        for size in [min(step, entry.size - first)]
    ]


class Tensor(NamedTuple):
    """An entry and its data, as they lie in a file."""

    entry: TensorEntry
    data: memoryview


class _HeaderEntry(msgspec.Struct, frozen=True):
    """What a header says of one tensor; offsets count from the header's end."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def parse(data: bytes | memoryview) -> dict[str, Tensor]:
    """The tensors of a safetensors file by name, as views of `data`. Raises ValueError where it is none."""
    first = 8 + int.from_bytes(data[:8], "little")
    if len(data) < 8 or first > len(data):
        raise ValueError(f"is not a safetensors file: {len(data)} bytes, the header would end at {first}")
    table = msgspec.json.decode(bytes(data[8:first]), type=dict[str, msgspec.Raw])
    table.pop("__metadata__", None)
    content, tensors = memoryview(data)[first:], {}
    for name, raw in table.items():
        place = msgspec.json.decode(raw, type=_HeaderEntry)
        begin, end = place.data_offsets
        count = math.prod(place.shape)
        if not 0 <= begin <= end <= len(content):
            raise ValueError(f"{name} would lie at {begin} to {end} of {len(content)} bytes")
        width = (end - begin) // count if count else 1
        entry = TensorEntry(name=name, dtype=place.dtype, shape=place.shape, size=end - begin, element_size=width)
        tensors[name] = Tensor(entry, content[begin:end])
    return tensors
