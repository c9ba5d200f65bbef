"""The layout of a snapshot's slot in the arena, without torch: where its table is, and whether the content fits it.

A slot has a page that gives the position of its table, then the tensors, then all other state. At its end is the table,
with names, positions and digests of everything. Promises: a table is used only if its digest is the recorded one. Bytes
that the table does not mention are ignored.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from typing import Final

import msgspec
import xxhash

from tolariad.storage.verify import CheckpointUnusable

_HEAD: Final = struct.Struct("<8sQQ")
_MAGIC: Final = b"TOLSNAP1"
_PIECE_BYTES: Final = 1024 * 1024


class TensorRow(msgspec.Struct, frozen=True, array_like=True):
    """One tensor: its position in the slot and the digest of its bytes, in row-major order."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    first: int
    size: int
    xxh3: int


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a slot.

    `parent` is the checkpoint that this state descends from; `acted` has the same meaning as in the manifest.
    """

    step: int
    epoch: int
    batch: int
    acted: tuple[int, ...]
    parent: str
    groups: dict[str, tuple[TensorRow, ...]]
    aliases: dict[str, str]
    transient: tuple[str, ...]
    state_group: str
    state_first: int
    state_size: int
    state_xxh3: int

    @property
    def tensors_xxh3(self) -> str:
        """The digests of all tensors, concatenated."""
        return "".join(f"{row.xxh3:016x}" for rows in self.groups.values() for row in rows)


def encode_table(table: Table) -> tuple[bytes, str]:
    """Return a table's bytes and their digest."""
    encoded = msgspec.msgpack.encode(table)
    return encoded, xxhash.xxh3_128_hexdigest(encoded)


def head(first: int, size: int) -> bytes:
    """Return the first bytes of a slot whose table is at `first` and has `size` bytes."""
    return _HEAD.pack(_MAGIC, first, size)


def table_of(slot: int, size: int, digest: str, read: Callable[[int, int], bytes]) -> Table:
    """Return the table of a slot of `size` bytes, read by `read(first, size)`.

    Raises CheckpointUnusable if its digest is not `digest`.
    """
    head_bytes = read(0, _HEAD.size)
    if len(head_bytes) < _HEAD.size:
        raise CheckpointUnusable(f"slot {slot}", "it has no table")
    magic, first, length = _HEAD.unpack(head_bytes)
    encoded = read(first, length) if first + length <= size else b""
    if magic != _MAGIC or xxhash.xxh3_128_hexdigest(encoded) != digest:
        raise CheckpointUnusable(f"slot {slot}", "its table is not the one that was recorded")
    try:
        table = msgspec.msgpack.decode(encoded, type=Table)
    except (ValueError, RecursionError) as error:
        raise CheckpointUnusable(f"slot {slot}", f"its table cannot be read: {error}") from error
    # The trainer wrote it, and runs the user's code: no place outside the slot is read.
    places = [(row.first, row.size) for rows in table.groups.values() for row in rows]
    if any(begin < 0 or count < 0 or begin + count > size for begin, count in (*places, _state_of(table))):
        raise CheckpointUnusable(f"slot {slot}", "its table names a place outside the slot")
    return table


def _state_of(table: Table) -> tuple[int, int]:
    return table.state_first, table.state_size


def verify_slot(
    descriptor: int, slot: int, slot_bytes: int, digest: str, each: Callable[[], None] = lambda: None
) -> None:
    """Compare the content of a slot with its table. `each` is called before each piece and may raise.

    Raises CheckpointUnusable, naming the first difference.
    """
    # Read the file, do not map it: the daemon does not need the pages in its own address space.
    begin = slot * slot_bytes
    table = table_of(slot, slot_bytes, digest, lambda first, size: os.pread(descriptor, size, begin + first))
    piece = memoryview(bytearray(_PIECE_BYTES))

    def digest_of(first: int, size: int) -> int:
        whole = xxhash.xxh3_64()
        while size > 0:
            each()
            got = os.preadv(descriptor, [piece[: min(size, _PIECE_BYTES)]], begin + first)
            if got <= 0:
                break
            whole.update(piece[:got])
            first, size = first + got, size - got
        return int(whole.intdigest())

    for group, rows in table.groups.items():
        for row in rows:
            if digest_of(row.first, row.size) != row.xxh3:
                raise CheckpointUnusable(group, f"{row.name} differs from its recorded digest")
    if digest_of(table.state_first, table.state_size) != table.state_xxh3:
        raise CheckpointUnusable(table.state_group, f"slot {slot} differs from its recorded digest")
