"""The header of a safetensors file, so that tensors can be streamed to disk without a second copy in memory.

Promises: equal tensors give equal bytes (entries are sorted, nothing else is written); data is aligned for its type,
because wider types come first and the header ends on 8 bytes. It must not know: where tensors come from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor: its dtype as safetensors names it, its shape, its size and the size of one element in bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size: int
    element_size: int


def layout(entries: Sequence[Entry]) -> list[Entry]:
    """The order of the data: wider element types first, then by name."""
    return sorted(entries, key=lambda entry: (-entry.element_size, entry.name))


def header(entries: Sequence[Entry]) -> bytes:
    """The bytes before the data of `entries`, which must be in the order of `layout`."""
    table: dict[str, object] = {}
    offset = 0
    for entry in entries:
        end = offset + entry.size
        table[entry.name] = {"dtype": entry.dtype, "shape": entry.shape, "data_offsets": (offset, end)}
        offset = end
    text = msgspec.json.encode(table)
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
