"""The speed at which a checkpoint is written beside training: what the disk gives, less if that helps training.

It rises fast until something suffers for the first time, and more slowly from then on. If durable writes of the journal
take long, it falls. If steps take longer than usual ones, it falls on trial: a byte must cost training less at the
lower speed. Else the checkpoint would only last longer, and the trial is taken back.

The pieces are small at first, so that a write of the journal waits for little. They grow where the limit is not
reached, and where slowing does not help. There a piece costs the same whatever its size: beside steps that compute, the
writer and the training wait for each other's hold of the interpreter.

Promises: pure functions. The limit is at least `LEAST`. It falls only if something suffers. Without anything measured
beside it the writer gets as fast as the disk.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct
from msgspec.structs import replace

# Bytes a second. A checkpoint must end even if everything suffers from something else.
LEAST: Final = 50e6
FIRST: Final = 200e6
# Up to this much of a usual one, a step beside a checkpoint is not looked into.
STEP_MOST: Final = 1.25
# Beyond this, a lower speed is kept also if a byte costs as much there, as long as steps get shorter.
STEP_WORST: Final = 2.0
# A durable write of the journal may take this long (the sources' budget), or so many times a usual one.
APPEND_S: Final = 0.010
APPEND_MOST: Final = 4.0
_RISE, _CAREFUL_RISE, _FALL = 2.0, 1.2, 0.5
# At least the size of a large page of the page cache.
LEAST_PIECE: Final = 2 * 1024 * 1024
MOST_PIECE: Final = 8 * 1024 * 1024
# If less than this share of the limit is reached, it is not the limit that counts.
_REACHED: Final = 0.8
# A fall has helped if what it should lessen is at most this share of before.
_LESS: Final = 0.9


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


class Trial(Struct, frozen=True):
    """The limit from which the speed fell on trial, and the step and the speed that were measured there."""

    limit: float
    step: float
    bytes_s: float

    def has_helped(self, step: float, bytes_s: float) -> bool:
        """Return whether training is better off now: by what a byte costs it, or a step that was far too long."""
        costs_less = _cost(step, bytes_s) < _LESS * _cost(self.step, self.bytes_s)
        return costs_less or (self.step > STEP_WORST and step < _LESS * self.step)


def _cost(step: float, bytes_s: float) -> float:
    """Return the seconds of training that a byte costs."""
    return (1.0 - 1.0 / max(1.0, step)) / max(1.0, bytes_s)


class Pacing(Struct, frozen=True):
    """The greatest speed in bytes a second.

    `careful`: something has suffered in this process before. `borne`: slowing does not help a step that takes this much
    of a usual one. `trial`: the last fall, while it is not known whether it helps.
    """

    bytes_s: float = FIRST
    careful: bool = False
    piece_bytes: int = LEAST_PIECE
    borne: float = STEP_MOST
    trial: Trial | None = None


def begun(pacing: Pacing) -> Pacing:
    """Return what the next checkpoint begins with: whether slowing helps is found out anew."""
    return replace(pacing, borne=STEP_MOST, trial=None)


def after(pacing: Pacing, seen: Beside) -> Pacing:
    """Return the speed and the size of the pieces for the next window."""
    # If the disk, or a processor, gave less than the limit, the limit is not what counts.
    reached = min(pacing.bytes_s, seen.bytes_s)
    lower = max(LEAST, _FALL * reached)
    if seen.journal_suffers:
        return replace(pacing, bytes_s=lower, careful=True, piece_bytes=LEAST_PIECE, trial=None)
    trial, step = pacing.trial, seen.step
    if trial is not None and step is not None:
        if not trial.has_helped(step, reached):
            borne = max(pacing.borne, trial.step / _LESS)
            return replace(pacing, bytes_s=trial.limit, piece_bytes=_larger(pacing), borne=borne, trial=None)
        pacing = replace(pacing, borne=STEP_MOST)
    if step is not None and step > pacing.borne and lower < reached:
        return replace(pacing, bytes_s=lower, careful=True, trial=Trial(pacing.bytes_s, step, reached))
    rise = _CAREFUL_RISE if pacing.careful else _RISE
    is_reached = reached >= _REACHED * pacing.bytes_s
    return replace(
        pacing,
        bytes_s=rise * pacing.bytes_s if is_reached else max(pacing.bytes_s, rise * reached),
        piece_bytes=pacing.piece_bytes if is_reached else _larger(pacing),
        trial=None,
    )


def _larger(pacing: Pacing) -> int:
    return min(MOST_PIECE, 2 * pacing.piece_bytes)
