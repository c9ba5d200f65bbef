"""Is this step healthy? Rules over loss, gradient norm, learning rate, accuracy and time, all pure.

The trainer asks before each update. Everything is judged against what this run itself has done (docs/detection.md).

| what is seen | finding | what it calls for |
|---|---|---|
| loss or gradient norm is not finite | NON_FINITE | the step is skipped |
| far above the level, its spread, and what the last 4096 steps now and then reached | SPIKE | the step is skipped |
| nine steps in a row that are not finite, or a lasting rise far above anything that the run came back from | SUSTAINED | rollback |
| the fifth step in a row that is high in its gradient norm alone | SHIFT | nothing but a record: the update is made |
| a lasting rise that is less than that, or that something explains | RISE | nothing but a record |
| fifteen times the level and far above all excesses, two or three times in a row | EXPLOSION | emergency |
| the accuracy fell to half of its average, or to chance | COLLAPSE | rollback (`accuracy_collapsed`) |
| one step took twenty times as long as others | STALL | nothing but a record (`is_stalled`): time never changes weights |

What follows from a verdict is decided elsewhere: a rule says what it sees, the kernel says what is done.
"""

from __future__ import annotations

from tolariad.core.detection.course import CourseState
from tolariad.core.detection.detector import Detector, DetectorState
from tolariad.core.detection.envelope import NO_LIMIT, EnvelopeState, Scale
from tolariad.core.detection.rules import Action, Finding, Rules, Signal, Verdict, accuracy_collapsed, is_stalled
from tolariad.core.detection.swing import SwingState

__all__ = [
    "NO_LIMIT",
    "Action",
    "CourseState",
    "Detector",
    "DetectorState",
    "EnvelopeState",
    "Finding",
    "Rules",
    "Scale",
    "Signal",
    "SwingState",
    "Verdict",
    "accuracy_collapsed",
    "is_stalled",
]
