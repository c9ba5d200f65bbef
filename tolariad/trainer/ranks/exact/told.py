"""What each leaf tells beside its loss: metrics by name, in the mapping, so that all ranks have those of all leaves.

The names of a run's metrics are found while it trains, on one rank before another. So they are told with their values,
and every rank takes them over in the order of the leaves: it then gives each name the same place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from tolariad.trainer.errors import SetupRefused

# Of a leaf: as many metrics as a run may have, if their names are of a usual length.
TOLD_BYTES: Final = 16384
_LENGTH: Final = 4
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(dict[str, float]).decode


class Told:
    """The metrics of all leaves of a step."""

    def __init__(self, memory: memoryview) -> None:
        """`memory`: TOLD_BYTES for each leaf, all zero at first."""
        self._memory = memory

    def drop(self, leaf: int) -> None:
        """Begin with a leaf, which has told nothing yet."""
        at = leaf * TOLD_BYTES
        self._memory[at : at + _LENGTH] = bytes(_LENGTH)

    def put(self, leaf: int, metrics: Mapping[str, float]) -> None:
        """Keep the metrics of a leaf. Raises SetupRefused if their names are too long."""
        body = _encode(metrics)
        if len(body) > TOLD_BYTES - _LENGTH:
            raise SetupRefused(
                f"the metrics of one micro-batch take {len(body)} bytes, and exact sums have room for {TOLD_BYTES}: "
                "give fewer ones, or shorter names"
            )
        at = leaf * TOLD_BYTES
        self._memory[at + _LENGTH : at + _LENGTH + len(body)] = body
        self._memory[at : at + _LENGTH] = len(body).to_bytes(_LENGTH, "little")

    def of(self, leaves: int) -> list[dict[str, float]]:
        """Return those of the first leaves, in their order."""
        found = []
        for at in range(0, leaves * TOLD_BYTES, TOLD_BYTES):
            length = int.from_bytes(self._memory[at : at + _LENGTH], "little")
            found.append(_decode(self._memory[at + _LENGTH : at + _LENGTH + length]) if length else {})
        return found
