"""A snapshot's slot in a memory file, as far as nobody needs torch for it: where its table lies, what that says, whether the
rest is as it says.

A slot is a page that says where its table lies, then tensors, then everything that is no tensor, then the table: names,
places and digests of all of it. Promises: a table counts only by its own digest, and what it does not speak of matters to
nobody. It must not know: which slot is to be used, or what the journal says of it.
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
    """One tensor: where it lies in the slot, and the digest of its bytes, row by row."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    first: int
    size: int
    xxh3: int


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """What lies in a slot. `parent`: the checkpoint this state descends from."""

    step: int
    epoch: int
    batch: int
    applied_cause: int
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
        """The digests of all tensors, one behind the other."""
        return "".join(f"{row.xxh3:016x}" for rows in self.groups.values() for row in rows)


def encode_table(table: Table) -> tuple[bytes, str]:
    """A table's bytes, and their digest."""
    encoded = msgspec.msgpack.encode(table)
    return encoded, xxhash.xxh3_128_hexdigest(encoded)


def head(first: int, size: int) -> bytes:
    """What a slot begins with whose table lies there."""
    return _HEAD.pack(_MAGIC, first, size)


def table_of(slot: int, size: int, digest: str, read: Callable[[int, int], bytes]) -> Table:
    """The table of a slot of `size` bytes, which `read(first, size)` gives. Raises CheckpointUnusable where it is another."""
    magic, first, length = _HEAD.unpack(read(0, _HEAD.size))
    encoded = read(first, length) if first + length <= size else b""
    if magic != _MAGIC or xxhash.xxh3_128_hexdigest(encoded) != digest:
        raise CheckpointUnusable(f"slot {slot}", "its table is not the one that was recorded")
    return msgspec.msgpack.decode(encoded, type=Table)


def verify_slot(
    descriptor: int, slot: int, slot_bytes: int, digest: str, each: Callable[[], None] = lambda: None
) -> None:
    """Compare all that a slot of a memory file holds with its table; `each` is called now and then.

    Raises CheckpointUnusable, naming the first that differs. The file is read, not mapped: whoever holds it for others has
    no use for its pages.
    """
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
                raise CheckpointUnusable(group, f"{row.name} is not what was recorded of it")
    if digest_of(table.state_first, table.state_size) != table.state_xxh3:
        raise CheckpointUnusable(table.state_group, f"slot {slot} does not hold what was recorded")
