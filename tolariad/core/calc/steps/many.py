"""Completed steps field by field, for folding many of them at once.

Promises: a field's values are those that the events have, with the bits of every float. `tolariad.core.state` says how
they are folded.
"""

from __future__ import annotations

import math
import sys
from array import array
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

_WORD: Final = 2**64 - 1
# In the order in which the running digest packs a step: whole numbers, then floats, 8 bytes each.
_WHOLE: Final = ("branch", "step", "epoch", "batch", "rates", "data")
_FLOATS: Final = ("loss", "grad_norm", "lr")
_WORDS: Final = len(_WHOLE) + len(_FLOATS)
PACKED_BYTES: Final = 8 * _WORDS


class ManySteps(NamedTuple):
    """Completed steps in the order of their events. All columns have the same length; `metrics` has a tuple a step."""

    step: Sequence[int]
    epoch: Sequence[int]
    batch: Sequence[int]
    branch: Sequence[int]
    loss: Sequence[float]
    grad_norm: Sequence[float]
    lr: Sequence[float]
    mono: Sequence[int]
    wall: Sequence[int]
    rates: Sequence[int]
    data: Sequence[int]
    metrics: Sequence[tuple[float, ...]]

    @property
    def size(self) -> int:
        """Return how many steps these are."""
        return len(self.step)

    def part(self, first: int, last: int | None = None) -> ManySteps:
        """Return the steps from index `first` up to `last`, which is not one of them."""
        return ManySteps._make(column[first:last] for column in self)

    def packed(self) -> bytes:
        """Return what the running digest covers of each step, PACKED_BYTES each."""
        words = array("Q", bytes(PACKED_BYTES * self.size))
        for place, name in enumerate(_WHOLE):
            words[place::_WORDS] = _words(getattr(self, name))
        for place, name in enumerate(_FLOATS, len(_WHOLE)):
            words[place::_WORDS] = _bits(getattr(self, name))
        if sys.byteorder == "big":
            words.byteswap()
        return words.tobytes()


def many_of(steps: Iterable[Any]) -> ManySteps:
    """Return the steps, which are StepCompleted events, field by field."""
    rows = [
        (e.step, e.epoch, e.batch, e.branch, e.loss, e.grad_norm, e.lr, e.mono, e.wall, e.rates, e.data, e.metrics)
        for e in steps
    ]
    return ManySteps._make(zip(*rows, strict=True) if rows else ((),) * len(ManySteps._fields))


def one_nan(value: float) -> float:
    """Return the value, with the same bits for every NaN: a NaN's bits depend on the processor, not on the training."""
    return math.nan if math.isnan(value) else value


def _words(column: Sequence[int]) -> array[int]:
    """Return whole numbers modulo 2**64: an event may hold a negative one."""
    if isinstance(column, array):
        words = array("Q")
        words.frombytes(column.tobytes())
        return words
    return array("Q", [number & _WORD for number in column])


def _bits(column: Sequence[float]) -> array[int]:
    """Return the bits of floats, the same for every NaN."""
    floats = array("d", map(one_nan, column) if any(map(math.isnan, column)) else column)
    return _words(floats)  # type: ignore[arg-type]  # its bytes are taken, and not its numbers
