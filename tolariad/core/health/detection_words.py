"""What the detector found, and what is done about it.

It must not know: the rules by which something is found.
"""

from __future__ import annotations

from typing import ClassVar

from tolariad.core.base import Batch, Effect, Epoch, Event, Message, Step
from tolariad.core.detection.rules import Finding, Signal, Verdict
from tolariad.core.health.emergency_words import Level


class InstabilityDetected(Event, frozen=True, kw_only=True):
    """Something is not as it was: `value` went over `limit`, where healthy steps had `baseline`.

    `step` is the update that was judged, before it was made; `batch` the last batch of it. What was done about it has this
    event as its cause; where nothing has, nothing was done. `run_of`: unhealthy steps in a row, this one included.
    `asks`: the trainer stands before the update until it is told what follows. `level`: of the emergency that it is.
    `explosion`: above it the loss would have exploded. `returns`: how often the run had gone back from this place before.
    `goes_on`: the finding called for a rollback, but rollbacks do not help here: the update is made.
    `first_batch`: where the batches begin that the detector suspects; 0 if it suspects none.
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
    asks: bool = False
    level: Level | None = None
    explosion: float = 0.0
    returns: int = 0
    goes_on: bool = False
    first_batch: Batch = 0


class InstabilityReport(Message, frozen=True, kw_only=True):
    """The detector's verdict on update `step`, whose last batch is `batch`; what it suspects begins at `first_batch`.

    The update is not made before `GoOn` comes. `late`: it has been made already, its numbers were not known in time.
    """

    verdict: Verdict
    step: Step
    epoch: Epoch
    batch: Batch
    first_batch: Batch
    late: bool = False


class GoOn(Effect, frozen=True, kw_only=True):
    """To the trainer: make update `step` in spite of what was found."""

    step: Step


def detected(verdict: Verdict, *, step: int, epoch: int, batch: int) -> InstabilityDetected:
    """A verdict as it is recorded."""
    return InstabilityDetected(
        finding=verdict.finding,
        signal=verdict.signal,
        value=verdict.value,
        baseline=verdict.baseline,
        limit=verdict.limit,
        run_of=verdict.run_of,
        explosion=verdict.explosion,
        step=step,
        epoch=epoch,
        batch=batch,
    )


EVENTS = (InstabilityDetected,)
