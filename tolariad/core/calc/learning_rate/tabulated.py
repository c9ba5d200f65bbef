"""The values of a user's rate function at every step, packed into text that an event can hold.

Promises: unpacking gives the same floats, bit for bit, without the function. Text that was not made by `packed` is
never an error: it unpacks to no values. Equal values give equal text on one machine; another version of zlib may pack
them into another text, which unpacks to the same values.
"""

import base64
import binascii
import functools
import struct
import zlib
from array import array
from collections.abc import Sequence
from itertools import pairwise
from math import isfinite
from typing import Annotated, Final

from msgspec import Struct

from tolariad.core.calc.bounds import unit
from tolariad.core.calc.units import Hex

# A smooth function of a million steps takes about 450 000 characters. The tables of all groups are in every capture of
# the state, so together they have at most these many.
PACKED_MAX: Final = 700_000
STEPS_MAX: Final = 1 << 20
# As for the rates of orders: a product of two of them is still finite.
FACTOR_MAX: Final = 1e6
_WORD: Final = 2**64 - 1
_ORDERS: Final = (0, 3)
_BYTES: Final = 8


class Tabulated(Struct, frozen=True, omit_defaults=True):
    """A function of step and horizon: where it is (`file.py:function`), its file's SHA-256, and its `steps` values.

    `packed`: see `packed`. The rate of the n-th update is base_lr times the n-th value. With `absolute` it is the value
    itself: the rates of a scheduler of torch are rarely a product of base_lr to the last bit.
    """

    source: Annotated[str, unit("")]
    hash: Hex
    steps: Annotated[int, unit("steps", 1, STEPS_MAX)]
    packed: Annotated[str, unit("base64", 0, PACKED_MAX)]
    absolute: bool = False

    @property
    def name(self) -> str:
        """Return the source without the folder."""
        return self.source.replace("\\", "/").rpartition("/")[2]


def packed(factors: Sequence[float]) -> str:
    """Return the factors as text: differences of the floats' bits, byte by byte, compressed.

    The bits of a smooth function's values are nearly a polynomial of the step, so their third differences are small.
    """
    differences = list(_words(struct.pack(f"<{len(factors)}d", *factors)))
    found = []
    for order in range(max(_ORDERS) + 1):
        if order in _ORDERS:
            # Move the sign to the lowest bit, and put the bytes of equal weight side by side: most of them are zeros.
            raw = _bytes([((one << 1) & _WORD) ^ (_WORD if one >> 63 else 0) for one in differences])
            found.append(bytes((order,)) + zlib.compress(b"".join(raw[byte::_BYTES] for byte in range(_BYTES)), 6))
        differences = [*differences[:1], *((two - one) & _WORD for one, two in pairwise(differences))]
    return base64.b64encode(min(found, key=len)).decode()


@functools.lru_cache(maxsize=8)
def unpacked(text: str, steps: int) -> "array[float]":
    """Return the factors in `text`; empty if it does not hold exactly `steps` of them."""
    nothing = array("d")
    try:
        body = base64.b64decode(text, validate=True)
        unpack = zlib.decompressobj()
        # Bounded: a short text can unpack to gigabytes.
        planes = unpack.decompress(body[1:], _BYTES * max(0, min(steps, STEPS_MAX)) + 1)
    except (binascii.Error, ValueError, zlib.error):
        return nothing
    if not planes or len(planes) != _BYTES * steps or body[0] > max(_ORDERS):
        return nothing
    raw = bytearray(len(planes))
    for byte in range(_BYTES):
        raw[byte::_BYTES] = planes[byte * steps : (byte + 1) * steps]
    words = [(one >> 1) ^ (_WORD if one & 1 else 0) for one in _words(raw)]
    for _ in range(body[0]):
        total = 0
        for index, one in enumerate(words):
            words[index] = total = (total + one) & _WORD
    return array("d", struct.unpack(f"<{steps}d", _bytes(words)))


def _words(raw: bytes | bytearray) -> tuple[int, ...]:
    return struct.unpack(f"<{len(raw) // _BYTES}Q", raw)


def _bytes(words: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(words)}Q", *words)


def factors_of(table: Tabulated | None) -> "array[float]":
    """Return the values of the function, one for each step; empty if there is no table."""
    return array("d") if table is None else unpacked(table.packed, table.steps)


def factor_refusal(step: int, factor: object) -> str | None:
    """Return why `factor` cannot be the function's value at `step`, or None."""
    if isinstance(factor, float) and isfinite(factor) and 0.0 <= factor <= FACTOR_MAX:
        return None
    return f"at step {step} it gives {factor!r}; a factor of base_lr is a number from 0 to {FACTOR_MAX:g}"


def table_refusal(table: Tabulated, steps: int | None) -> str | None:
    """Return why `table` cannot be the table of a schedule of `steps` steps, or None."""
    if steps is None:
        return "a function needs a schedule with a last step, and this run does not know one"
    factors = factors_of(table)
    if table.steps != steps or len(factors) != steps:
        return f"the table of {table.name} has {len(factors)} steps, and the schedule has {steps}"
    wrong = (factor_refusal(step, one) for step, one in enumerate(factors))
    return next((f"{table.name}: {why}" for why in wrong if why is not None), None)
