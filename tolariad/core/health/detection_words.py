"""The detector's findings, and the trainer's question about them."""

from __future__ import annotations

from typing import ClassVar

from tolariad.core.base import Batch, Epoch, Event, Report, Step, TrainerEffect
from tolariad.core.detection.rules import Finding, Signal, Verdict
from tolariad.core.health.emergency_words import Level


class InstabilityDetected(Event, frozen=True, kw_only=True):
    """The detector found something unusual: `value` exceeded `limit`; healthy steps had `baseline`.

    `step` is the update that was judged, before it was made; `batch` is its last batch. What followed has this event as
    its cause; if nothing has, nothing was done. `run_of`: unhealthy steps in a row, this one included. `asks`: the
    trainer waits before the update for an answer. `level`: the level of the emergency that it causes. `explosion`: the
    loss above which the detector finds an explosion. `returns`: how often the run had gone back from this place before.
    `goes_on`: the finding called for a rollback, but rollbacks do not help here, so the update is made. `first_batch`:
    the first of the batches that the detector suspects; 0: none.
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


class InstabilityReport(Report, frozen=True, kw_only=True):
    """The detector's verdict on update `step`, whose last batch is `batch`.

    The suspected batches begin at `first_batch`. The trainer waits for `GoOn` before the update. `late`: the update was
    already made, because its values were known late.
    """

    verdict: Verdict
    step: Step
    epoch: Epoch
    batch: Batch
    first_batch: Batch
    late: bool = False


class GoOn(TrainerEffect, frozen=True, kw_only=True):
    """To the trainer: make update `step` in spite of the finding."""

    step: Step


def detected(verdict: Verdict, *, step: int, epoch: int, batch: int) -> InstabilityDetected:
    """Return the event that records a verdict."""
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
