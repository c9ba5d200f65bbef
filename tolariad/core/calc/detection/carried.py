"""What the detector keeps over a rollback: how loud single batches are. Everything else is the target's.

Without it a loud kind of batch that led to the rollback would be found again, and again. The largest swing is not kept:
the rise that was gone back for must be found if it comes again.

Promises: pure functions of states. Neither changes a state that is passed in.
"""

from __future__ import annotations

from dataclasses import replace as changed

from msgspec.structs import replace

from tolariad.core.calc.detection.detector import DetectorState
from tolariad.core.calc.detection.envelope import EnvelopeState, Scale
from tolariad.core.calc.detection.loud import Loud


def loud(state: DetectorState) -> Loud:
    """Return what the detector knows about loud batches."""
    return Loud(_loudest(state.course.losses), _loudest(state.norms))


def _loudest(envelope: EnvelopeState) -> float:
    return max(envelope.excesses, default=0.0) if envelope.scale is Scale.LOG else 0.0


def with_loud(state: DetectorState, known: Loud) -> DetectorState:
    """Return the state of a detector that knows such loud batches as well."""
    course = changed(state.course, losses=_louder(state.course.losses, known.loss))
    return replace(state, course=course, norms=_louder(state.norms, known.norm))


def _louder(target: EnvelopeState, excess: float) -> EnvelopeState:
    """Return the envelope with the larger of both excesses in its newest group."""
    if target.scale is not Scale.LOG or not excess > 0.0:
        return target
    excesses = list(target.excesses) or [0.0]
    excesses[-1] = max(excesses[-1], excess)
    return changed(target, excesses=excesses)
