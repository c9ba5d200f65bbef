"""Is this step healthy? Rules over loss, gradient norm, accuracy and time, all pure; the trainer asks before each update.

| what is seen | finding | what it calls for |
|---|---|---|
| loss or gradient norm is not finite | NON_FINITE | the step is skipped |
| far above the window's median, in its own spread, and above what is seen now and then | SPIKE | the step is skipped |
| too many steps skipped one after the other | SUSTAINED | rollback |
| a few of them for their gradient norm alone | SHIFT | nothing but a record: that is the level now, the update is made |
| the fast moving average of the loss has left the slow one | DIVERGENCE | rollback |
| the loss is 15 times the median and more than at the beginning, and the step before was unhealthy too | EXPLOSION | emergency |
| the accuracy fell to half of its average, or to chance | COLLAPSE | rollback (`accuracy_collapsed`) |
| one step took twenty times as long as others | STALL | nothing but a record (`is_stalled`): time never changes weights |

What follows from a verdict is decided elsewhere: a rule says what it sees, the kernel says what is done.
"""

from __future__ import annotations

from tolariad.core.detection.detector import Detector
from tolariad.core.detection.rules import Action, Finding, Rules, Signal, Verdict, accuracy_collapsed, is_stalled
from tolariad.core.detection.window import NO_LIMIT, DetectorState, Scale, WindowState

__all__ = [
    "NO_LIMIT",
    "Action",
    "Detector",
    "DetectorState",
    "Finding",
    "Rules",
    "Scale",
    "Signal",
    "Verdict",
    "WindowState",
    "accuracy_collapsed",
    "is_stalled",
]
