"""What the detector found, and what is done about it.

It must not know: the rules by which something is found.
"""

from __future__ import annotations

from typing import ClassVar

from tolariad.core.detection.rules import Finding, Signal
from tolariad.core.vocabulary.base import Batch, Epoch, Event, Step


class InstabilityDetected(Event, frozen=True, kw_only=True):
    """Something is not as it was: `value` went over `limit`, where healthy steps had `baseline`.

    `step` is the update that was judged, before it was made; `batch` the last batch of it. What was done about it has this
    event as its cause; where nothing has, nothing was done. `run_of`: unhealthy steps in a row, this one included.
    """

    EMITTED_BY: ClassVar[str] = "trainer"

    finding: Finding
    signal: Signal
    value: float
    baseline: float
    limit: float
    step: Step
    epoch: Epoch
    batch: Batch
    run_of: int = 1


EVENTS = (InstabilityDetected,)
