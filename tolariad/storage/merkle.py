"""The Merkle root of a checkpoint: one hash over every piece and over the execution context.

Leaves, nodes and the root have different prefixes, so that none can be presented as another. Leaves are sorted. An odd
leaf moves up as it is (it is never duplicated). The number of leaves is part of the root.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from blake3 import blake3

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tolariad.core.checkpoints.words import Piece

_LEAF: Final = b"\x00"
_NODE: Final = b"\x01"
_ROOT: Final = b"\x02"


def _field(data: bytes) -> bytes:
    """Prefix the field with its length, so that different lists of fields never give the same bytes."""
    return len(data).to_bytes(8, "little") + data


def piece_leaf(piece: Piece) -> bytes:
    """Return the leaf of one file: a hash of its name, its size and its BLAKE3."""
    size = piece.size.to_bytes(8, "little")
    return blake3(_LEAF + b"piece" + _field(piece.name.encode()) + size + _field(piece.blake3.encode())).digest()


def context_leaf(context: Mapping[str, str]) -> bytes:
    """Return the leaf of the execution context: a hash of its names and values, sorted by name."""
    fields = b"".join(_field(name.encode()) + _field(value.encode()) for name, value in sorted(context.items()))
    return blake3(_LEAF + b"context" + fields).digest()


def merkle_root(pieces: Sequence[Piece], context: Mapping[str, str]) -> str:
    """Return the root in hexadecimal. It does not depend on the order of `pieces`."""
    level = sorted([*map(piece_leaf, pieces), context_leaf(context)])
    count = len(level).to_bytes(8, "little")
    while len(level) > 1:
        paired = [blake3(_NODE + one + two).digest() for one, two in zip(level[::2], level[1::2], strict=False)]
        level = [*paired, *level[len(paired) * 2 :]]
    return blake3(_ROOT + count + level[0]).hexdigest()
