"""The speed at which a checkpoint is written beside training: what the disk gives, less if training suffers.

It rises fast until something suffers for the first time, and in small steps from then on. What suffers is a step that
takes longer than a usual one, or a durable write of the journal that takes long. Then the speed is halved.

The pieces are small at first, so that a write of the journal waits for little. If the limit is not reached, pieces are
what it costs: beside steps that compute, the writer waits for the interpreter after each piece. Then they grow.

Promises: pure functions. The limit stays between `LEAST` and the most that was reached, times the next rise. It falls
only if something suffers. Without anything measured beside it the writer gets as fast as the disk.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct
from msgspec.structs import replace

# Bytes a second. A checkpoint must end even if everything suffers from something else.
LEAST: Final = 50e6
FIRST: Final = 200e6
# A step beside a checkpoint may take this much of a usual one.
STEP_MOST: Final = 1.25
# A durable write of the journal may take this long (the sources' budget), or so many times a usual one.
APPEND_S: Final = 0.010
APPEND_MOST: Final = 4.0
_RISE, _CAREFUL_RISE, _FALL = 2.0, 1.1, 0.5
# At least the size of a large page of the page cache.
LEAST_PIECE: Final = 2 * 1024 * 1024
MOST_PIECE: Final = 8 * 1024 * 1024
# If less than this share of the limit is reached, it is not the limit that counts.
_REACHED: Final = 0.7


class Pacing(Struct, frozen=True):
    """The greatest speed in bytes a second. `careful`: something has suffered in this process before."""

    bytes_s: float = FIRST
    careful: bool = False
    piece_bytes: int = LEAST_PIECE


class Beside(Struct, frozen=True):
    """The measurements of one window of writing.

    `bytes_s`: the speed that was reached. `step`: the median step as a share of a usual one; None: no step ended, or
    none is known. `append_s`: a quarter of the journal's durable writes took this long, or longer; None: there was
    none. `usual_append_s`: 0 if it is not known.
    """

    bytes_s: float
    step: float | None = None
    append_s: float | None = None
    usual_append_s: float = 0.0

    @property
    def journal_suffers(self) -> bool:
        """Return whether the journal's writes are held up."""
        return (self.append_s or 0.0) > max(APPEND_S, APPEND_MOST * self.usual_append_s)

    @property
    def suffers(self) -> bool:
        """Return whether training or the journal is held up."""
        return (self.step or 0.0) > STEP_MOST or self.journal_suffers


def after(pacing: Pacing, seen: Beside) -> Pacing:
    """Return the speed and the size of the pieces for the next window."""
    # If the disk, or a processor, gave less than the limit, the limit is not what counts.
    reached = min(pacing.bytes_s, seen.bytes_s)
    if seen.suffers:
        # Large pieces hold up the journal. They do not hold up a step: each costs it the same, so few are better.
        piece = LEAST_PIECE if seen.journal_suffers else pacing.piece_bytes
        return Pacing(max(LEAST, _FALL * reached), careful=True, piece_bytes=piece)
    rise = _CAREFUL_RISE if pacing.careful else _RISE
    grows = reached < _REACHED * pacing.bytes_s
    return replace(
        pacing,
        bytes_s=max(pacing.bytes_s, rise * reached),
        piece_bytes=min(MOST_PIECE, 2 * pacing.piece_bytes) if grows else pacing.piece_bytes,
    )
