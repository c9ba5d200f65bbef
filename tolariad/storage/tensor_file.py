"""The layout of a safetensors file: write tensors without a second copy in memory, read them without torch.

Promises: equal tensors give equal bytes, because entries are sorted and nothing else is written. Data is aligned for
its type, because wider types come first and the header ends at a multiple of 8 bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

_LABELS: Final = "__metadata__"
# torch has at most 64 dimensions, too.
_DIMENSIONS_MAX: Final = 64


class TensorEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor: its dtype as safetensors names it, its shape, its size and the size of one element in bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size: int
    element_size: int


def layout(entries: Sequence[TensorEntry]) -> list[TensorEntry]:
    """Return the entries in the order of their data: wider element types first, then by name."""
    return sorted(entries, key=lambda entry: (-entry.element_size, entry.name))


def header(entries: Sequence[TensorEntry], labels: Mapping[str, str] | None = None) -> bytes:
    """Return the bytes before the data of `entries`, which must be in the order of `layout`. `labels`: metadata."""
    table: dict[str, object] = {_LABELS: labels} if labels else {}
    offset = 0
    for entry in entries:
        end = offset + entry.size
        table[entry.name] = {"dtype": entry.dtype, "shape": entry.shape, "data_offsets": (offset, end)}
        offset = end
    text = msgspec.json.encode(table)
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


class Part(NamedTuple):
    """The part of a tensor in one file: its entry there, and the offset of its first byte within the tensor."""

    entry: TensorEntry
    first: int


def distribute(entries: Sequence[TensorEntry], file_bytes: int) -> list[list[Part]]:
    """Distribute `entries`, in the order of `layout`, over files of at most `file_bytes`. Return at least one file.

    A tensor larger than a file is stored in several, each time as a row of elements under its own name.
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
    """Split a tensor into rows, each of as many elements as fit into a file."""
    step = room // entry.element_size * entry.element_size
    return [
        Part(msgspec.structs.replace(entry, shape=(size // entry.element_size,), size=size), first)
        for first in range(0, entry.size, step)
        for size in [min(step, entry.size - first)]
    ]


class Tensor(NamedTuple):
    """An entry and its data in a file."""

    entry: TensorEntry
    data: memoryview


def content(tensors: Iterable[Tensor], labels: Mapping[str, str]) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a file with these tensors, in any order: its header, then the data of each."""
    ordered = {tensor.entry.name: tensor for tensor in tensors}
    entries = layout([tensor.entry for tensor in ordered.values()])
    yield header(entries, labels)
    yield from (ordered[entry.name].data for entry in entries)


class _HeaderEntry(msgspec.Struct, frozen=True):
    """A header's entry for one tensor. Offsets are relative to the end of the header."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def _split(data: bytes | memoryview) -> tuple[dict[str, msgspec.Raw], memoryview]:
    """Return the header's entries, and the content after it."""
    first = 8 + int.from_bytes(data[:8], "little")
    if len(data) < 8 or first > len(data):
        raise ValueError(f"is not a safetensors file: it has {len(data)} bytes, but its header would end at {first}")
    try:
        table = msgspec.json.decode(bytes(data[8:first]), type=dict[str, msgspec.Raw])
    except RecursionError:
        raise ValueError("is not a safetensors file: the values of its header are nested too deeply") from None
    return table, memoryview(data)[first:]


def labels_of(data: bytes | memoryview) -> dict[str, str]:
    """Return the labels of a safetensors file. Raises ValueError if it is malformed."""
    raw = _split(data)[0].get(_LABELS)
    return msgspec.json.decode(raw, type=dict[str, str]) if raw is not None else {}


def parse(data: bytes | memoryview) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file by name, as views of `data`. Raises ValueError if it is malformed."""
    table, content = _split(data)
    table.pop(_LABELS, None)
    tensors = {}
    for name, raw in table.items():
        place = msgspec.json.decode(raw, type=_HeaderEntry)
        begin, end = place.data_offsets
        if not 0 <= begin <= end <= len(content):
            raise ValueError(f"{name} would lie at {begin} to {end} of {len(content)} bytes")
        width = _width(name, place.shape, end - begin)
        entry = TensorEntry(name=name, dtype=place.dtype, shape=place.shape, size=end - begin, element_size=width)
        tensors[name] = Tensor(entry, content[begin:end])
    return tensors


def _width(name: str, shape: tuple[int, ...], size: int) -> int:
    """Return the bytes of an element; 1 if there are none. Raises ValueError if a tensor cannot have this shape."""
    if len(shape) > _DIMENSIONS_MAX or min(shape, default=0) < 0:
        raise ValueError(f"{name} has no possible shape")
    count = math.prod(shape)
    # Types of less than a byte exist: four bits for an element.
    if (size and not count) or count > 8 * size or (count and size % count and count % size):
        raise ValueError(f"{name} has {size} bytes for {count} elements")
    return max(1, size // count) if count else 1
