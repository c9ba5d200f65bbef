"""Steps, epochs and validations: what training reports and what becomes of it.

It must not know: optimizers, tensors, devices. A step is reported after its update was applied.
"""

from __future__ import annotations

import enum
from typing import ClassVar, Final, TypeAlias

from tolariad.core.base import Batch, Digest64, Effect, Epoch, Event, Loss, Message, Rate, Seconds, Step
from tolariad.core.detection.rules import Verdict
from tolariad.core.health.budget_words import Tally

# The gradient norm of a step that did not measure it (`grad_norm.every`): no norm is negative, and a NaN would be one that
# was measured.
NOT_MEASURED: Final = -1.0


class SkipReason(enum.Enum):
    """Why no update was made from a batch.

    `overflow`: fp16 gradients were not finite at their scale. `non_finite`, `spike`: the detector's findings, and nothing
    of the batch stays, neither in running statistics nor in random state. `quarantined`: it was not even looked at, so there
    is no loss (a NaN) and no gradient norm (-1).
    """

    OVERFLOW = "overflow"
    NON_FINITE = "non_finite"
    SPIKE = "spike"
    QUARANTINED = "quarantined"


class Limit(enum.Enum):
    """What ended training before all its epochs were done (`stop` in the configuration)."""

    EPOCHS = "epochs"
    STEPS = "steps"
    HOURS = "hours"
    PATIENCE = "patience"


class StepReport(Message, frozen=True, kw_only=True):
    """Step `step` was applied. `rates` is a 64-bit digest over the rates of all groups, `lr` the first group's."""

    step: Step
    epoch: Epoch
    batch: Batch
    loss: Loss
    grad_norm: float
    lr: Rate
    rates: Digest64


# The fields of a StepReport, in their order: what is made in every step is made without one.
StepValues: TypeAlias = "tuple[int, int, int, float, float, float, int]"


def report_of(values: StepValues) -> StepReport:
    """The same as a report."""
    step, epoch, batch, loss, grad_norm, lr, rates = values
    return StepReport(step=step, epoch=epoch, batch=batch, loss=loss, grad_norm=grad_norm, lr=lr, rates=rates)


class StepSkippedReport(Message, frozen=True, kw_only=True):
    """The batches up to `batch` led to no update; `step` is the number that the next applied one will have.

    `verdict`: what the detector saw, where it is the reason.
    """

    step: Step
    epoch: Epoch
    batch: Batch
    loss: Loss
    grad_norm: float
    reason: SkipReason
    verdict: Verdict | None = None


class EpochStartedReport(Message, frozen=True, kw_only=True):
    """The first batch of `epoch` is about to be taken."""

    epoch: Epoch


class ValidationBegunReport(Message, frozen=True, kw_only=True):
    """The validation after `epoch` begins."""

    epoch: Epoch
    step: Step


class ValidationReport(Message, frozen=True, kw_only=True):
    """The validation after `epoch` is done. `metrics` are means over all samples; `loss` and `accuracy` are the known names."""

    epoch: Epoch
    step: Step
    metrics: dict[str, float]
    samples: int
    seconds: Seconds


class EpochReport(Message, frozen=True, kw_only=True):
    """All of `epoch` is done, its validation too; the trainer waits for `Continue(epoch)`.

    `tallies`: what was measured of budgets since the report before.
    """

    epoch: Epoch
    step: Step
    tallies: tuple[Tally, ...] = ()


class TrainingEndedReport(Message, frozen=True, kw_only=True):
    """The last epoch is done; the trainer waits for orders. `tallies` as in EpochReport."""

    step: Step
    tallies: tuple[Tally, ...] = ()


class StepCompleted(Event, frozen=True, kw_only=True):
    """One applied optimizer update, recorded once however often it was run again. A `grad_norm` of -1 was not measured."""

    EMITTED_BY: ClassVar[str] = "trainer"

    step: Step
    epoch: Epoch
    batch: Batch
    loss: Loss
    grad_norm: float
    lr: Rate
    rates: Digest64
    branch: int = 0


class StepSkipped(Event, frozen=True, kw_only=True):
    """Batches were used and no update was made: no step is counted and no rate moves on.

    `step` is the number of the update that was not made; the next applied one has it.
    """

    EMITTED_BY: ClassVar[str] = "trainer"

    step: Step
    epoch: Epoch
    batch: Batch
    loss: Loss
    grad_norm: float
    reason: SkipReason
    branch: int = 0


class EpochStarted(Event, frozen=True, kw_only=True):
    """The first batch of an epoch was about to be taken."""

    EMITTED_BY: ClassVar[str] = "trainer"

    epoch: Epoch


class EpochFinished(Event, frozen=True, kw_only=True):
    """An epoch is done. `train_loss` is the mean over the folded steps of this epoch.

    `metric` is what plateaus are judged by, under its name: the validation's loss, else `train_loss`.
    """

    epoch: Epoch
    step: Step
    steps: int
    train_loss: Loss
    seconds: Seconds
    metric: Loss | None = None
    metric_name: str = ""


class ValidationBegun(Event, frozen=True, kw_only=True):
    """A validation runs; it ends in exactly one of ValidationFinished and ValidationAborted."""

    EMITTED_BY: ClassVar[str] = "trainer"

    epoch: Epoch
    step: Step


class ValidationFinished(Event, frozen=True, kw_only=True):
    """Validation metrics, means over all samples."""

    EMITTED_BY: ClassVar[str] = "trainer"

    epoch: Epoch
    step: Step
    metrics: dict[str, float]
    samples: int
    seconds: Seconds


class ValidationAborted(Event, frozen=True, kw_only=True):
    """The validation did not end; it is run again."""

    epoch: Epoch
    why: str


class ValidationImproved(Event, frozen=True, kw_only=True):
    """The validation after `epoch` was better than every one before it."""

    epoch: Epoch
    metric: str
    value: float


class LimitReached(Event, frozen=True, kw_only=True):
    """The run is to end here: the last checkpoint follows, then RunCompleted."""

    limit: Limit
    step: Step
    epoch: Epoch


class EndTraining(Effect, frozen=True, kw_only=True):
    """To the trainer: make no further update; report that training has ended, at an epoch's end after its validation."""


class Continue(Effect, frozen=True, kw_only=True):
    """To the trainer: epoch `epoch` is recorded, go on to the next."""

    epoch: Epoch


EVENTS = (
    StepCompleted,
    StepSkipped,
    EpochStarted,
    EpochFinished,
    ValidationBegun,
    ValidationFinished,
    ValidationAborted,
    ValidationImproved,
    LimitReached,
)
