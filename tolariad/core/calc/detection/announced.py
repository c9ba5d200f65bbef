"""The detector begins anew: what it keeps, and what it learns again, after a change that somebody announced.

| fields | announced stage |
|---|---|
| `losses` and `norms`: `level`, `last`, `fresh`, `blocks`, `since`, `count` | begun anew |
| `begin`, `begin_low` | of the stage's first values |
| `spread`, `spread_blocks`, `tops`, `excesses`: how single batches scatter | kept |
| `swing.size`: the largest rise that led to nothing | kept |
| `floor`, `rate`, `rates`, `rates_top` | kept |
| `row`, `exploded`, `not_finite`, `looks`, `said`, `dead` | 0 |

Promise: a pure function of states. The state that is passed in does not change.
"""

from __future__ import annotations

from tolariad.core.calc.detection.course import CourseState
from tolariad.core.calc.detection.detector import DetectorState
from tolariad.core.calc.detection.envelope import EnvelopeState
from tolariad.core.calc.detection.swing import SwingState


def announced(state: DetectorState) -> DetectorState:
    """Return the state from which the detector begins anew: with a new level, and with the spread of batches it knew.

    The first eight losses of the stage make its level. Until the 64th the limits of a run's first steps hold.
    """
    known = state.course
    course = CourseState(
        losses=_new_level(known.losses),
        swing=SwingState(size=known.swing.size),
        floor=known.floor,
        rate=known.rate,
        rates=list(known.rates),
        rates_top=known.rates_top,
    )
    return DetectorState(course=course, norms=_new_level(state.norms))


def _new_level(known: EnvelopeState) -> EnvelopeState:
    return EnvelopeState(
        scale=known.scale,
        spread=known.spread,
        spread_blocks=known.spread_blocks,
        tops=list(known.tops),
        excesses=list(known.excesses),
        in_group=known.in_group,
    )
