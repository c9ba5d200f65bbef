"""Bring a sampler that holds an iterator to its place: draw all epochs before again.

Nobody can read or set how far an iterator is. In a new process it is at its beginning, as is everything else that the
sampler holds. Drawing the same epochs brings it to the same place, if each of them is the same again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from tolariad.trainer.data.order import drawn_whole
from tolariad.trainer.data.sources import Source

_LIMIT_S: Final = 10.0


class PastEpoch(NamedTuple):
    """An epoch whose order was drawn to its end: its batches, and the digest of their indices."""

    epoch: int
    drawn: int
    digest: int


def draw_again(source: Source, past: Sequence[PastEpoch], before: Callable[[int], None]) -> str:
    """Draw these epochs again. Return why that did not work, or the empty string. `before` is called before each."""
    give_up = time.monotonic() + _LIMIT_S
    for one in past:
        before(one.epoch)
        source.begin_drawing(one.epoch)
        source.begin(one.epoch)
        if drawn_whole(source.order) != (one.drawn, one.digest):
            return f"epoch {one.epoch} came out differently"
        if time.monotonic() > give_up:
            return f"{len(past)} epochs take over {_LIMIT_S:g} s"
    return ""
